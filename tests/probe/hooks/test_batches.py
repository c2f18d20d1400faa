"""What a packer returns beside what the model gets is compared with the plan, or the record says that it is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.layout import Coordinates
from harness.core.run.records import BatchSeen
from harness.probe.hooks.batches import batch_seen
from harness.probe.truth import StepTruth
from harness.runtime.device.placement import Device
from harness.upstreams.node_base import Batch, RankContext
from tests.runtime.conftest import config

CONTEXT = RankContext(
    config=config("verl"), place=Coordinates(tp=0, pp=0, cp=0, dp=0), device=Device(kind="cpu", backend="gloo")
)
TRUTH = StepTruth(CONTEXT.config, 0, 0)


def positions() -> Tensor:
    """Of the first micro-batch, [1, slots]."""
    return TRUTH.micro_batches[0].position_ids[None].clone()


def seen(beside: dict[str, Any] | None) -> tuple[BatchSeen, set[str]]:
    """The record, and the names of what it says is not read."""
    unread: set[str] = set()
    recorder: Any = SimpleNamespace(not_read=unread.update, params=lambda params: None)
    return batch_seen(Batch(beside=beside), TRUTH, CONTEXT, recorder, 0, 0), unread


def test_positions_that_the_model_does_not_get_are_compared() -> None:
    right, unread = seen({"position_ids": positions()})
    assert (right.position_ids and right.position_ids.mismatches, unread) == (0, set())
    wrong, _ = seen({"position_ids": positions() + 1})
    assert wrong.position_ids is not None
    assert wrong.position_ids.first == [0, 0, 0, 1]


def test_what_no_plan_has_is_named_as_not_read() -> None:
    batch, unread = seen({"position_ids": None, "lengths": torch.tensor([1])})
    assert (batch.position_ids, unread) == (None, {"lengths"})
    assert seen(None)[1] == set()
