"""How much evidence a verdict rests on."""

from __future__ import annotations

from harness.core.run.report import Weight
from harness.judge.weight import weight_of
from tests.judge.parts import with_routers
from tests.judge.simulator import config_of, evidence_for
from tests.judge.timed import timed

BOTH = {("packed", 0): 0.1, ("unpacked", 0): 0.1}


def test_the_weight_of_clean_evidence_counts_ranks_legs_steps_and_numbers() -> None:
    evidence = evidence_for(config_of("reference", tp=2, canaries=("determinism", "padding")))
    numbers = sum(scan.numbers for scan in evidence.scans.values())
    assert numbers > 1000
    weight = weight_of(evidence)
    assert weight == Weight(
        records=2,
        legs=4,
        steps=2,
        numbers=numbers,
        smallest_seen=weight.smallest_seen,  # test_smallest_seen.py
        reference="the control, since the oracle does not model simulated ranks",
    )


def test_the_timing_leg_counts() -> None:
    assert weight_of(timed(BOTH)).legs == 3
    assert weight_of(evidence_for(config_of("sft"))).legs == 2


def test_legs_and_steps_that_not_every_rank_completed_do_not_count() -> None:
    evidence = evidence_for(config_of("sft", tp=2, canaries=("determinism",)))
    evidence.records[1].legs = []
    evidence.records[1].steps.pop()
    found = weight_of(evidence)
    assert (found.records, found.legs, found.steps) == (2, 2, 1)
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].steps = []
    found = weight_of(evidence)
    assert (found.records, found.legs, found.steps) == (2, 1, 0)


def test_the_metadata_leg_counts_if_every_rank_fetched_batches() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        record.batches = []
    assert weight_of(evidence).legs == 2  # the steps were fetched after it
    evidence.records[1].steps = []
    assert weight_of(evidence).legs == 0
    del evidence.records[1]
    found = weight_of(evidence)
    assert (found.records, found.legs, found.steps) == (1, 0, 0)


def test_a_control_with_other_rows_is_named() -> None:
    text = (
        "compared with nothing, since the control has other rows: gradients, gradient norm, first update, steps "
        "after the first"
    )
    assert weight_of(with_routers()).not_compared == text
    assert weight_of(evidence_for(config_of("sft"))).not_compared == ""
    alone = with_routers()
    alone.control = None
    assert weight_of(alone).not_compared == ""


def test_a_cell_without_records_has_no_weight() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records = {}
    assert weight_of(evidence) == Weight()
