"""Calls of upstream's refusals. What Megatron-Bridge answers: tests/app/matrices/test_releases.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.data_paths.descriptor import FORBIDDEN_CASES
from harness.node.data_paths import rules
from harness.node.data_paths.rules import CASES, Case
from tests import forked

REFUSED = """
import json, sys, torch.distributed as dist
from pathlib import Path
from megatron.core import parallel_state, tensor_parallel
from harness.node.data_paths.rules import CASES, _refusal
from harness.node.device import cpu_stubs
cpu_stubs.install()  # they stay installed, hence the separate process
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
parallel_state.initialize_model_parallel()
tensor_parallel.model_parallel_cuda_manual_seed(1)
case, folder = CASES["megatron-local-attention"], Path(sys.argv[1])
print(json.dumps([_refusal(case, False, folder), _refusal(case, True, folder)[0]]))
"""
pytestmark = pytest.mark.usefixtures("world_of_one")


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    made = ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


def test_megatron_refuses_packed_rows_without_transformer_engine_and_accepts_others(tmp_path: Path) -> None:
    accepted, message = json.loads(forked.run(REFUSED, str(tmp_path)).splitlines()[-1])
    assert accepted == [None, None]
    assert FORBIDDEN_CASES["megatron-local-attention"].named_in(message or "")


def test_offsets_of_one_row_or_of_two_are_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []

    def old(batch: dict[str, Any], cp_size: int) -> None:
        seen.append((batch["cu_seqlens"].shape, cp_size))

    def new(batch: dict[str, Any], cp_group: Any) -> None:
        seen.append((batch["cu_seqlens"].shape, cp_group.size()))

    for split in (old, new):
        module(monkeypatch, "megatron.bridge.training.gpt_step", _partition_packed_batch_for_cp=split)
        for forbidden in (False, True):
            rules.rows_of_offsets(forbidden, tmp_path)
    assert seen == [((1, 3), 1), ((2, 3), 1)] * 2


def test_a_step_is_over_when_it_asks_for_one_more_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forward_step(state: Any, iterator: Any, model: Any) -> None:
        if state.cfg.dataset.defer_in_batch_packing_to_step:
            raise ValueError("set it to False")
        next(iterator)
        raise AssertionError("there is no batch")

    module(monkeypatch, "megatron.bridge.training.vlm_step", forward_step=forward_step)
    monkeypatch.setattr(rules, "CalledModel", lambda sizes, stage: SimpleNamespace(config=sizes))
    rules.packing_in_vlm_step(False, tmp_path)
    with pytest.raises(ValueError, match="set it to False"):
        rules.packing_in_vlm_step(True, tmp_path)


def test_a_step_that_packs_itself_gets_offsets_only_in_the_forbidden_case(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[set[str]] = []
    name = "megatron.bridge.models.qwen_vl.qwen3_vl_step"
    module(monkeypatch, name, get_batch_from_iterator=lambda batches, **_: seen.append(set(next(batches))))
    rules.packed_for_qwen3_vl_step(False, tmp_path)
    rules.packed_for_qwen3_vl_step(True, tmp_path)
    assert seen == [{"tokens"}, {"tokens", "cu_seqlens_q"}]


@pytest.mark.parametrize(
    ("name", "padded"), [("offline-graphs-free-rows", False), ("offline-graphs-free-offsets", True)]
)
def test_graphs_are_asked_for_with_rows_of_free_or_full_length(name: str, padded: bool) -> None:
    case = CASES[name]
    assert isinstance(case, Case)
    config = SimpleNamespace(model=SimpleNamespace(), dataset=SimpleNamespace(dataset_kwargs={}))
    case.change(config)
    assert config.model.cuda_graph_impl == "transformer_engine"
    assert config.dataset.dataset_kwargs == ({"pad_to_max_length": True} if padded else {})


def test_the_offsets_are_those_of_packed_rows() -> None:
    assert rules._OFFSETS.dtype == torch.int32
