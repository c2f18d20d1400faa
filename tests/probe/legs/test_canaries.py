"""Canary legs of real cells: only what they vary changes, and the change reaches the model through the data path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.cell.canary_legs import legs_of, shared_passes
from harness.core.cell.config import CANARIES, CellConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import LegSeen
from tests.runtime.conftest import Ran, config, run_cells

pytestmark = pytest.mark.train
SHORT = DocumentsConfig(mode="file", lengths=(20, 12, 9, 4, 15, 7, 3, 11))


def cell(data_path: str, documents: DocumentsConfig | None = None, dtype: str = "fp32", **layout: int) -> CellConfig:
    one = replace(config(data_path, **layout), canaries=CANARIES, dtype=dtype)
    return replace(one, documents=documents) if documents else one


CELLS = {
    "sft": cell("sft"),
    "tp2 pp2": cell("reference", tp=2, pp=2),
    "cp2": cell("sft", cp=2),
    "vpp": cell("reference", pp=2, vpp=2),
    "dp2": cell("reference", dp=2),
    "bf16": cell("reference", tp=2, dtype="bf16"),
    "unpacked": cell("unpacked"),
    "nothing cut": cell("sft", SHORT),
    "faulty": replace(cell("sft"), fault="labels-not-shifted"),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    return run_cells(tmp_path_factory.mktemp("canaries"), CELLS)


def last(one: Ran) -> tuple[dict[int, float], dict[str, LegSeen]]:
    """Losses of step 0 and legs of the last rank, which has losses in every layout."""
    record = one.records[max(one.records)]
    return {name: loss.loss_sum for name, loss in record.steps[0].documents.items()}, {
        leg.leg: leg for leg in record.legs
    }


@pytest.mark.parametrize("name", CELLS)
def test_every_rank_runs_every_leg_that_applies(ran: dict[str, Ran], name: str) -> None:
    one = ran[name]
    assert one.result.status == "completed"
    wanted = [leg.name for leg in legs_of(one.config)]
    assert all([leg.leg for leg in record.legs] == wanted for record in one.records.values())
    assert {leg.canary for leg in legs_of(one.config)} >= ({"determinism"} if name == "unpacked" else {"isolation"})


@pytest.mark.parametrize("name", [name for name in CELLS if name not in ("tp2 pp2", "bf16")])
def test_documents_that_a_leg_does_not_change_have_bitwise_equal_losses(ran: dict[str, Ran], name: str) -> None:
    before, legs = last(ran[name])
    plans = {leg.name: leg for leg in legs_of(ran[name].config)}
    for leg in (legs[item] for item in ("isolation", "isolation-middle", "padding", "determinism") if item in legs):
        changed = plans[leg.leg].changed
        assert leg.documents
        for document, loss in leg.documents.items():
            masked = loss.tokens == 0
            assert (loss.loss_sum == before[document]) == (document not in changed or masked)


def test_legs_run_on_the_initial_weights_though_training_has_moved_them(ran: dict[str, Ran]) -> None:
    record = ran["tp2 pp2"].records[2]
    (again,) = [leg for leg in record.legs if leg.leg == "determinism"]
    # The record's parameters also have the first update; a leg ends before it.
    assert again.parameters == [replace(seen, update=None, in_norm=None) for seen in record.parameters]
    assert again.activations == record.activations
    assert record.steps[1].loss_sum != record.steps[0].loss_sum


def test_copies_have_one_loss_and_documents_keep_theirs_in_another_order(ran: dict[str, Ran]) -> None:
    before, legs = last(ran["sft"])
    copies = [loss.loss_sum for loss in legs["repetition"].documents.values()]
    assert len(copies) == 8
    assert copies == pytest.approx([copies[0]] * 8, rel=1e-6)
    for document, loss in legs["order"].documents.items():
        assert loss.loss_sum == pytest.approx(before[document], rel=1e-6)


def test_a_fault_breaks_each_leg_by_the_documents_of_that_leg(ran: dict[str, Ran]) -> None:
    before, legs = last(ran["faulty"])
    right, _ = last(ran["sft"])
    assert all(before[document] != right[document] for document, loss in legs["order"].documents.items() if loss.tokens)
    for document, loss in legs["order"].documents.items():
        assert loss.loss_sum == pytest.approx(before[document], rel=1e-6)


def test_documents_that_are_too_long_are_truncated_by_upstream_as_planned(ran: dict[str, Ran]) -> None:
    _, legs = last(ran["nothing cut"])
    batches = legs["truncation"].batches
    assert len(batches) == 8  # one row for each long document, and for each document between them
    assert all(seen is not None and seen.mismatches == 0 for batch in batches for seen in (batch.tokens, batch.labels))


def test_the_training_is_recorded_before_a_leg_breaks(tmp_path: Path) -> None:
    broken = replace(cell("reference", tp=2), fault="crash-on-a-pack-of-many")
    one = run_cells(tmp_path, {"broken": broken})["broken"]
    assert one.result.status == "failed"
    for record in one.records.values():
        assert len(record.steps) == 2 and record.parameters
        assert record.progress.leg == "repetition"
        assert [leg.leg for leg in record.legs] == ["determinism"]  # the others share the pass of the broken one


@pytest.mark.parametrize("name", ["tp2 pp2", "vpp", "dp2"])
def test_legs_without_a_backward_share_a_pass(ran: dict[str, Ran], name: str) -> None:
    passes = [[leg.name for leg in legs] for legs in shared_passes(legs_of(ran[name].config))]
    assert max(len(legs) for legs in passes) >= 4
    for record in ran[name].records.values():
        times = {leg.leg: leg.time_s for leg in record.legs}
        assert [len({times[leg] for leg in legs}) for legs in passes] == [1] * len(passes)
        assert len(set(times.values())) == len(passes)
