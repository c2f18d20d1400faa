"""The SkyRL adapter with fake modules of the same names; real releases run in matrices/releases.yaml."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from dataclasses import replace

import pytest
import torch

from harness.core.outcomes import Missing
from harness.core.packing.options import PackingOptions
from harness.probe.truth import StepTruth
from harness.upstreams.skyrl import node_data_path
from harness.upstreams.skyrl.node_data_path import SkyrlPath, _positions, _spans
from tests.runtime.conftest import config
from tests.upstreams.data_paths.test_table import fact


def test_without_skyrl_the_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_data_path, "find_spec", lambda name: None)
    found = SkyrlPath.unavailable(config("skyrl"))
    assert isinstance(found, Missing)
    assert "neither skyrl nor skyrl-train is installed" in found.reason


def test_a_function_that_the_release_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    home = "skyrl_train.distributed.megatron"
    monkeypatch.setattr(
        node_data_path,
        "find_spec",
        lambda name: importlib.machinery.ModuleSpec(name, None) if name == "skyrl_train" else None,
    )
    parts = home.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))] + [
        f"{home}.megatron_utils",
        f"{home}.model_utils",
    ]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert f"has no {home}.megatron_utils.preprocess_packed_seqs" in fact(SkyrlPath.unavailable(config("skyrl")))
    monkeypatch.setattr(sys.modules[f"{home}.megatron_utils"], "preprocess_packed_seqs", print, raising=False)
    assert SkyrlPath.unavailable(config("skyrl")) is None
    rows = replace(config("skyrl"), options=PackingOptions(remove_microbatch_padding=False))
    assert f"has no {home}.megatron_utils.remove_left_padding" in fact(SkyrlPath.unavailable(rows))


def test_every_document_has_a_row_padded_on_both_sides() -> None:
    for micro in StepTruth(config("skyrl", cp=2), 0, 0).micro_batches:
        spans = _spans(micro, 64)
        assert [length for _, length in spans] == [item.document.length for item in micro.plan.placed]
        assert all(start >= 0 and start + length <= 64 for start, length in spans)
        assert all(start == (64 - length) // 2 for start, length in spans)


def test_positions_are_counted_over_the_real_tokens_of_a_row() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 0], [0, 0, 1, 0, 0]]).bool()
    assert _positions(mask).tolist() == [[0, 0, 1, 2, 0], [0, 0, 0, 0, 0]]
