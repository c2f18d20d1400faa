"""Combinations on stand-ins of upstream's functions. What upstream answers: tests/cli/commands/test_contracts.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness.contracts import combinations
from harness.contracts.combinations import COMBINATIONS, GAPS_UNTIL_06, Combination, release_of
from harness.core.outcomes import Missing, Rejection

pytestmark = pytest.mark.usefixtures("world_of_one")


def test_a_refusal_is_returned_with_its_type(tmp_path: Path) -> None:
    def attempt(forbidden: bool, folder: Path) -> None:
        assert folder == tmp_path
        if forbidden:
            sys.exit("no such row")

    combination = Combination(attempt=attempt, says="row")
    assert combination.refusal(False, tmp_path) is None
    assert combination.refusal(True, tmp_path) == "SystemExit: no such row"


def test_a_function_that_is_absent_is_a_limit_of_older_releases_and_may_be_renamed_in_newer_checkouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(since: tuple[int, int]) -> Any:
        needs = ("megatron.core.packed_seq_params:Renamed",)
        return Combination(attempt=lambda *_: None, says="", needs=needs, validator="it", since=since).unavailable()

    assert isinstance(lacking((0, 0)), Rejection), "a wheel"
    monkeypatch.setattr("harness.upstreams.node_lookup._INSTALLED", set())  # now it looks like a checkout
    assert isinstance(lacking((0, 0)), Missing)
    assert isinstance(lacking((release_of("megatron.core")[0], 999)), Rejection)


def test_each_gap_is_one_of_the_combinations_of_megatron_bridge() -> None:
    assert {COMBINATIONS[name].project for name in GAPS_UNTIL_06} == {"megatron.bridge"}


def test_the_command_line_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = list(sys.argv)
    with combinations._command_line(["--seq-length", "64"], ranks=2):
        assert (sys.argv[1:], os.environ["WORLD_SIZE"]) == (["--seq-length", "64"], "2")
    assert sys.argv == before
    assert "WORLD_SIZE" not in os.environ


def test_without_a_gpu_the_validator_sees_the_architecture_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = SimpleNamespace(get_device_arch_version=lambda: 9)
    with combinations._architecture(arguments):
        assert arguments.get_device_arch_version() == 10
    assert arguments.get_device_arch_version() == 9


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


def test_offsets_of_one_row_or_of_two_are_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def old(batch: dict[str, Any], cp_size: int) -> None:
        seen.append((batch["cu_seqlens"].shape, cp_size))

    def new(batch: dict[str, Any], cp_group: Any) -> None:
        seen.append((batch["cu_seqlens"].shape, cp_group.size()))

    for split in (old, new):
        module(monkeypatch, "megatron.bridge.training.gpt_step", _partition_packed_batch_for_cp=split)
        for forbidden in (False, True):
            combinations._offsets_of_two_rows(forbidden, tmp_path)
    assert seen == [((1, 3), 1), ((2, 3), 1)] * 2


def test_a_step_is_over_when_it_asks_for_one_more_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forward_step(state: Any, iterator: Any, model: Any) -> None:
        if state.cfg.dataset.defer_in_batch_packing_to_step:
            raise ValueError("set it to False")
        next(iterator)
        raise AssertionError("there is no batch")

    module(monkeypatch, "megatron.bridge.training.vlm_step", forward_step=forward_step)
    monkeypatch.setattr(combinations, "CalledModel", lambda sizes, stage: SimpleNamespace(config=sizes))
    combinations._deferred_in_vlm_step(False, tmp_path)
    with pytest.raises(ValueError, match="set it to False"):
        combinations._deferred_in_vlm_step(True, tmp_path)


def test_a_step_that_packs_itself_gets_offsets_only_in_the_forbidden_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[set[str]] = []
    name = "megatron.bridge.models.qwen_vl.qwen3_vl_step"
    module(monkeypatch, name, get_batch_from_iterator=lambda batches, **_: seen.append(set(next(batches))))
    combinations._packed_for_qwen3_vl_step(False, tmp_path)
    combinations._packed_for_qwen3_vl_step(True, tmp_path)
    assert seen == [{"tokens"}, {"tokens", "cu_seqlens_q"}]
