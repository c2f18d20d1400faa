from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import TrainConfig
from harness.core.cell.layout import Coordinates
from harness.core.cell.timing import Timed
from harness.core.packing.documents import mix
from harness.core.run.records import Failure, RankRecord, RouterSeen, WorkloadSeen
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required.identity import untrusted
from tests.judge.checks.numerics.test_ended import cut_off
from tests.judge.parts import share, with_predictions, with_routers
from tests.judge.simulator import config_of, evidence_for

YEAR_S = 366 * 86400.0


def after(change: Callable[[RankRecord], object], rank: int = 1, **keys: Any) -> str:
    """Why evidence cannot be judged after a change of one rank's record."""
    evidence = evidence_for(config_of("sft", tp=2, **keys))
    change(evidence.records[rank])
    return untrusted(evidence)


def set_field(name: str, value: object) -> Callable[[RankRecord], None]:
    return lambda record: setattr(record, name, value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: evidence_for(config_of("sft")),
        lambda: evidence_for(config_of("reference", tp=2, pp=2, canaries=("isolation", "determinism"))),
        lambda: evidence_for(config_of("unpacked", cp=2, dp=2, micro_batch_size=2)),
        lambda: with_routers(pp=2),
        with_predictions,
    ],
)
def test_clean_evidence_can_be_judged(make: Callable[[], CellEvidence]) -> None:
    assert untrusted(make()) == ""


def test_damaged_files_are_named_before_anything_else() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.damaged, evidence.records = ["rank-0.json is not JSON", "rank-1.json is not JSON"], {}
    assert untrusted(evidence) == "rank-0.json is not JSON"


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("the node went down", "the node went down"),
        ("", "no reason given"),
        (None, "the cell has not run, or its agent died"),
    ],
)
def test_a_cell_without_records_says_why(reason: str | None, why: str) -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.reason = reason or ""
    evidence.records = {}
    if reason is None:
        evidence.result = None
    assert untrusted(evidence) == f"no rank records: {why}"


def test_a_cell_with_records_may_lack_a_result() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.result = None
    assert untrusted(evidence) == ""


def test_the_configuration_that_ran_must_be_there() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.config = None
    assert untrusted(evidence) == "config.json is missing, so what the ranks ran is unknown"


def test_the_configuration_that_ran_must_be_the_planned_one() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.config = replace(evidence.cell.config, deadline_s=60.0, micro_batch_size=2)
    assert untrusted(evidence) == "config.json has micro_batch_size 2, plan.json 1"
    evidence.config = replace(evidence.cell.config, train=TrainConfig(steps=1))
    later = "'eval_interval': 0, 'save_step': 1, 'label_smoothing': 0.0"
    found = f"{{'steps': 1, 'global_batch': 8, 'seq_length': 64, 'lr': 0.001, 'seed': 1234, {later}}}"
    planned = found.replace("'steps': 1", "'steps': 2")
    assert untrusted(evidence) == f"config.json has train {found}, plan.json {planned}"


FAILURE = Failure(type="RuntimeError", message="no", traceback="", time=1.0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_field("schema_version", 1), "schema_version 1, this harness reads 2"),
        (set_field("cell", "other"), "it belongs to cell other"),
        (set_field("rank", 0), "it belongs to rank 0"),
        (set_field("run_id", "other"), "it belongs to run other, not to smoke-20260101T000000-abcd"),
        (set_field("run_id", ""), "it belongs to no run, not to smoke-20260101T000000-abcd"),
        (set_field("attempt", 2), "it belongs to attempt 2, but is in the folder of attempt 1"),
        (
            set_field("place", Coordinates(tp=0, cp=0, dp=0, pp=0)),
            "its place is stage 0, tp 0, cp 0, dp 0, the layout puts it at stage 0, tp 1, cp 0, dp 0",
        ),
        (set_field("failure", FAILURE), "its ending is completed, but it contains a failure, RuntimeError"),
        (set_field("ended", "raised"), "its ending is raised, but it contains no failure"),
        (lambda record: record.steps.pop(), "its ending is completed, but it contains steps [0] of 2"),
        (lambda record: record.steps.pop(0), "its ending is completed, but it contains steps [1] of 2"),
        (
            lambda record: record.steps.append(record.steps[1]),
            "its ending is completed, but it contains steps [0, 1, 1] of 2",
        ),
        (set_field("packed_params", []), "it refers to packed params 0, but holds only 0"),
        (lambda record: setattr(record.batches[0], "params", 99), "it refers to packed params 99, but holds only 3"),
        (lambda record: setattr(record.layers[0], "params", -1), "it refers to packed params -1, but holds only 3"),
        (lambda record: record.batches.append(record.batches[0]), "batches: a micro-batch is listed twice"),
        (
            lambda record: setattr(record.batches[0], "chunk", 1),
            "batches: there is no step 0, chunk 1, micro-batch 0: chunks 1, micro-batches by step {0: 3}",
        ),
        (
            lambda record: setattr(record.batches[0], "chunk", -1),
            "batches: there is no step 0, chunk -1, micro-batch 0: chunks 1, micro-batches by step {0: 3}",
        ),
        (
            lambda record: setattr(record.batches[0], "micro_batch", 3),
            "batches: there is no step 0, chunk 0, micro-batch 3: chunks 1, micro-batches by step {0: 3}",
        ),
        (
            lambda record: setattr(record.batches[0], "micro_batch", -1),
            "batches: there is no step 0, chunk 0, micro-batch -1: chunks 1, micro-batches by step {0: 3}",
        ),
        (
            lambda record: record.workloads.append(
                WorkloadSeen(leg="training", step=2, micro_batches=1.0, tokens=1.0, squares=1.0)
            ),
            "workloads: there is no step 2",
        ),
        (lambda record: record.modules.update(skyrl="train/", numpy="linalg/"), "modules: numpy is not in imports"),
        *(
            (
                lambda record, value=value: record.environment.update(memory_limit_bytes=value),
                f"environment.memory_limit_bytes is {value[:40]!r}, not a number of bytes",
            )
            for value in ("", "many", "-1", "1.5", "²", "9" * 20, "x" * 50)
        ),
    ],
)
def test_a_record_must_be_of_this_rank_and_readable(change: Callable[[RankRecord], object], problem: str) -> None:
    assert after(change) == f"record of rank 1: {problem}"


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_record_is_of_a_rank_of_the_layout(rank: int) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[rank] = replace(evidence.records[1], rank=rank)
    assert untrusted(evidence) == f"record of rank {rank}: rank {rank} does not fit a layout of 2 ranks"


def test_batches_of_a_canary_leg_are_readable() -> None:
    config = replace(config_of("sft", canaries=("truncation",)), documents=mix("uncut", 64, 2))
    evidence = evidence_for(config)
    batch = evidence.records[0].legs[0].batches[2]
    assert untrusted(evidence) == "" and batch.tokens is not None
    batch.tokens = replace(batch.tokens, first=[1, 2, 3, 4])
    problem = "batches: tokens of micro-batch 2 names a mismatch but counts none"
    assert untrusted(evidence) == f"record of rank 0: {problem}"
    batch.params, held = 99, len(evidence.records[0].packed_params)
    assert untrusted(evidence) == f"record of rank 0: it refers to packed params 99, but holds only {held}"


def test_a_record_needs_no_memory_limit() -> None:
    assert after(lambda record: record.environment.pop("memory_limit_bytes")) == ""
    assert after(lambda record: record.environment.update(memory_limit_bytes="9" * 19)) == ""


def test_the_first_problem_of_the_first_rank_is_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records = {rank: evidence.records[rank] for rank in (1, 0)}
    for record in evidence.records.values():
        record.cell, record.schema_version = "other", 1
    assert untrusted(evidence) == "record of rank 0: schema_version 1, this harness reads 2"


def test_a_rank_that_did_not_complete_holds_fewer_steps_and_a_failure() -> None:
    assert after(lambda record: cut_off(record, "raised")) == ""
    assert after(lambda record: cut_off(record, "running")) == ""


def test_the_steps_of_a_rank_that_did_not_complete_are_the_first_ones() -> None:
    def change(record: RankRecord) -> None:
        record.ended, record.failure = "raised", FAILURE
        record.steps.pop(0)

    assert after(change) == "record of rank 1: its ending is raised, but it contains steps [1] of 2"


@pytest.mark.parametrize(
    ("ended", "kept", "problem"),
    [
        (
            "completed",
            [0],
            "its ending is completed, but it contains canary legs ['determinism'] of ['determinism', 'padding']",
        ),
        (
            "raised",
            [1],
            "its ending is raised, but it contains canary legs ['padding'] of ['determinism', 'padding']",
        ),
        ("raised", [0], ""),
    ],
)
def test_canary_legs_are_recorded_in_order(ended: str, kept: list[int], problem: str) -> None:
    def change(record: RankRecord) -> None:
        record.ended, record.failure = ended, FAILURE if ended == "raised" else None
        record.legs = [record.legs[number] for number in kept]

    found = after(change, canaries=("determinism", "padding"))
    assert found == (f"record of rank 1: {problem}" if problem else "")


def timed(seconds: float) -> Timed:
    return Timed(load="step", documents=4, round=0, seconds=seconds)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (set_field("setup_s", 1e9), "setup_s is 1e+09 s"),
        (set_field("setup_s", math.inf), "setup_s is inf s"),
        (lambda record: setattr(record.steps[1], "time_s", 1e9), "steps: step 1: time_s is 1e+09 s"),
        (lambda record: setattr(record.steps[1], "busy_s", 1e9), "steps: step 1: busy_s is 1e+09 s"),
        (lambda record: setattr(record.legs[0], "time_s", 1e9), "legs: determinism: time_s is 1e+09 s"),
        (lambda record: record.timings.append(timed(1e9)), "timings: step: seconds is 1e+09 s"),
        (set_field("peak_memory_bytes", 2**61), "peak_memory_bytes is 2.31e+18 bytes"),
        (set_field("peak_reserved_bytes", 2**61), "peak_reserved_bytes is 2.31e+18 bytes"),
        (set_field("peak_reserved_bytes", 10**300), "peak_reserved_bytes is 1e+300 bytes"),
    ],
)
def test_impossible_times_and_sizes_are_named(change: Callable[[RankRecord], object], problem: str) -> None:
    found = after(change, canaries=("determinism",))
    assert found == f"record of rank 1: {problem}, more than is possible"


def test_times_and_sizes_at_their_limits_are_possible() -> None:
    def change(record: RankRecord) -> None:
        record.setup_s, record.peak_memory_bytes = YEAR_S, 2**60

    assert after(change) == ""


@pytest.mark.parametrize("name", ["tokens", "labels", "loss_mask", "position_ids", "log_probs"])
@pytest.mark.parametrize(
    ("mismatches", "first", "words"),
    [
        (-1, None, "has -1 mismatches, None"),
        (2, [1, 2, 3], "has 2 mismatches, [1, 2, 3]"),
        (0, [1, 2, 3, 4], "names a mismatch but counts none"),
        (2, [1, 2, 3, 4], ""),
        (2, None, ""),
    ],
)
def test_what_differs_in_a_batch_can_be_reported(name: str, mismatches: int, first: list[int], words: str) -> None:
    evidence = evidence_for(config_of("skyrl"))
    batch = evidence.records[0].batches[1]
    setattr(batch, name, replace(getattr(batch, name), mismatches=mismatches, first=first))
    assert untrusted(evidence) == (f"record of rank 0: batches: {name} of micro-batch 1 {words}" if words else "")


def routed(change: Callable[[RouterSeen], object]) -> str:
    evidence = with_routers()
    change(evidence.records[0].routers[0])
    return untrusted(evidence)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda seen: seen.real.clear(), "(0, 1) rows of [4] experts"),
        (lambda seen: seen.padding.append(share(2, 1)), "(1, 2) rows of [4] experts"),
        (lambda seen: seen.real[0].counts.pop(), "(1, 1) rows of [3, 4] experts"),
        (lambda seen: seen.padding[0].scores.append(0.0), "(1, 1) rows of [4, 5] experts"),
    ],
)
def test_a_router_has_the_rows_and_experts_of_the_cell(change: Callable[[RouterSeen], object], found: str) -> None:
    assert routed(change) == f"record of rank 0: routers: layer 1 has {found}"


def test_a_model_without_experts_has_no_routers() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].routers = with_routers().records[0].routers[:1]
    assert untrusted(evidence) == "record of rank 0: routers: layer 1 has (1, 1) rows of [4] experts"
