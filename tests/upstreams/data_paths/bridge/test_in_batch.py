"""The rows that are packed in batch; real releases run in matrices/releases.yaml."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.core.outcomes import Missing
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_bridge import node_in_batch as bridge_in_batch
from harness.upstreams.megatron_bridge.node_in_batch import BridgeInBatchPath, right_padded
from harness.upstreams.node_lookup import not_in_release
from tests.runtime.conftest import config
from tests.upstreams.data_paths.test_table import fact


def test_rows_hold_one_document_each_and_are_padded_on_the_right() -> None:
    cell = replace(config("bridge_in_batch", tp=2, cp=2), micro_batch_size=2)
    for micro in StepTruth(cell, 0, 0).micro_batches:
        batch = right_padded(micro)
        lengths = [item.document.length for item in micro.plan.placed]
        assert batch["tokens"].shape == (2, max(lengths))
        assert batch["attention_mask"].sum(dim=1).tolist() == lengths
        for row, item in enumerate(micro.plan.placed):
            real = slice(item.start, item.start + lengths[row])
            for name in ("tokens", "labels", "loss_mask", "position_ids"):
                assert torch.equal(batch[name][row, : lengths[row]], getattr(micro, name)[real])
                assert not batch[name][row, lengths[row] :].any()


def test_a_package_that_the_stack_does_not_have_is_named() -> None:
    found = BridgeInBatchPath.unavailable(config("bridge_in_batch"))
    assert isinstance(found, Missing)  # Megatron-Bridge is not installed: an ERROR, not a rule
    assert "megatron-bridge is not installed" in found.reason
    assert "megatron.bridge.data.collators.sequence" in found.reason


def test_a_release_that_leaves_the_split_to_its_models_cannot_run_with_cp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        bridge_in_batch, "missing", lambda *modules: None if "training.vlm_step" in modules else not_in_release("no")
    )
    assert BridgeInBatchPath.unavailable(config("bridge_in_batch", tp=2)) is None
    assert "cp 2: vlm_step" in fact(BridgeInBatchPath.unavailable(config("bridge_in_batch", cp=2)))
    monkeypatch.setattr(bridge_in_batch, "missing", lambda *modules: None)
    assert BridgeInBatchPath.unavailable(config("bridge_in_batch", cp=2)) is None
