from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import Fingerprint
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.report.model import Weight
from harness.judge.required.audit import incomplete, weight_of
from tests.judge.checks.numerics.test_ended import cut_off
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import config_of, evidence_for
from tests.judge.timed import timed

CANARIES = ("isolation", "determinism", "padding", "repetition", "order")
BOTH = {("packed", 0): 0.1, ("unpacked", 0): 0.1}


@pytest.mark.parametrize(
    "make",
    [
        lambda: evidence_for(config_of("sft")),
        lambda: evidence_for(config_of("reference", tp=2, pp=2, canaries=CANARIES)),
        lambda: evidence_for(config_of("reference", cp=2, dp=2, pp=2, vpp=2)),
        lambda: evidence_for(config_of("skyrl", tp=2, sp=False)),
        lambda: evidence_for(config_of("unpacked", micro_batch_size=2)),
        lambda: evidence_for(replace(config_of("sft"), recompute="full")),
        lambda: with_routers(pp=2),
        lambda: with_predictions(depths=2, pp=2),
        lambda: timed(BOTH),
    ],
)
def test_clean_evidence_is_complete(make: Callable[[], CellEvidence]) -> None:
    assert incomplete(make()) == ""


def test_a_missing_result_leaves_the_end_unknown() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.result = None
    assert incomplete(evidence) == ("incomplete evidence: result.json is missing, so how the attempt ended is unknown")


def test_a_result_that_says_completed_must_agree_with_the_records() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.ranks[0].exit_code = 1
    problem = "rank 0 completed with exit code 1, though its record says completed"
    assert incomplete(evidence) == f"incomplete evidence: result.json: {problem}"
    evidence.result.status = "failed"
    assert incomplete(evidence) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda record: record.environment.pop("host"), "environment: host is missing"),
        (lambda record: record.layers.pop(), "layers: 1 missing, such as (1, 0, 2, 4); 24 are planned"),
        (
            lambda record: record.activations.pop(),
            "activations: recorded for layers [0, 1, 2, 3], expected for [0, 1, 2, 3, 4]",
        ),
        (lambda record: setattr(record.steps[0], "time_s", -1.0), "steps: step 0: time_s is -1.0"),
        (
            lambda record: setattr(record.parameters[0], "gradient", Fingerprint(norm_sq=1.0, projections=[0.0])),
            "the gradient of embedding.word_embeddings.weight has 1 projections, not 2",
        ),
    ],
)
def test_every_subject_of_a_record_is_audited(change: Callable[[RankRecord], object], problem: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    change(evidence.records[1])
    assert incomplete(evidence) == f"incomplete evidence: record of rank 1: {problem}"


def test_numbers_that_are_not_finite_are_left_to_the_checks() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].parameters[0].gradient.norm_sq = float("nan")
    assert incomplete(evidence) == ""


@pytest.mark.parametrize(("ranks", "more"), [(3, ""), (4, "; 1 more"), (8, "; 5 more")])
def test_three_problems_are_named_and_the_others_counted(ranks: int, more: str) -> None:
    evidence = evidence_for(config_of("sft", tp=8))
    for rank in range(ranks):
        evidence.records[rank].setup_s = -1.0
    named = "; ".join(f"record of rank {rank}: setup_s is -1.0" for rank in range(3))
    assert incomplete(evidence) == f"incomplete evidence: {named}{more}"


def test_whole_records_are_compared_with_each_other_and_the_control() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].environment["host"] = "node-2"
    del evidence.records[1].parameters[3]
    alike = "record of rank 1: environment: host is 'node-2', on rank 0 of the same node 'node-1'"
    name = "decoder.layers.0.input_layernorm.weight"
    held = f"record of rank 1: parameters: {name} differs from rank 0 of its stage"
    assert incomplete(evidence) == f"incomplete evidence: {alike}; {held}"


def test_records_with_problems_are_not_compared_with_each_other() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].environment["host"] = "node-2"
    del evidence.records[0].environment["host"]
    assert incomplete(evidence) == "incomplete evidence: record of rank 0: environment: host is missing"


@pytest.mark.parametrize("ended", ["running", "raised"])
def test_a_cell_whose_ranks_did_not_all_complete_is_not_audited(ended: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    cut_off(evidence.records[0], ended)
    evidence.result = None
    assert incomplete(evidence) == ""


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
