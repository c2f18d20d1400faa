from __future__ import annotations

from dataclasses import replace

import torch

from harness.core.cell.layout import Coordinates
from harness.probe.truth import StepTruth
from harness.runtime.device.placement import Device
from harness.upstreams.node_base import RankContext, as_planned, rows_by_slot
from tests.runtime.conftest import config

CPU = Device(kind="cpu", index=None, backend="gloo")


def test_values_by_document_go_to_the_slots_of_its_labels_and_each_cp_rank_gets_its_own() -> None:
    made = config("verl", cp=2)
    micro = StepTruth(made, 0, 0).micro_batches[0]
    rows = [torch.arange(item.document.length + 1) + 100.0 * item.document.index for item in micro.plan.placed]
    owners = micro.plan.slot_owners()
    for rank in range(2):
        context = RankContext(config=made, place=Coordinates(tp=0, cp=rank, dp=0, pp=0), device=CPU)
        found = rows_by_slot(rows, micro, context)
        slots = micro.plan.local_slots(2, rank)
        right = [[100.0 * doc + at if doc >= 0 else 0.0 for doc, at in (owners[slot] for slot in row)] for row in slots]
        assert found.tolist() == right


def test_rows_that_are_too_short_leave_slots_empty() -> None:
    made = replace(config("verl"))
    micro = StepTruth(made, 0, 0).micro_batches[0]
    context = RankContext(config=made, place=Coordinates(tp=0, cp=0, dp=0, pp=0), device=CPU)
    assert not rows_by_slot([torch.zeros(0) for _ in micro.plan.placed], micro, context).any()


def test_another_number_of_micro_batches_than_the_plans_becomes_its_number() -> None:
    assert [as_planned(iter(made), 2) for made in ("a", "ab", "abc")] == [["a", "a"], ["a", "b"], ["a", "b"]]
