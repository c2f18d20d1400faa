from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.timing import GpuState, Timed, TimingConfig
from harness.core.outcomes import Outcome
from harness.core.run.records import RankRecord
from harness.core.run.run_plan import BaselineRequest
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import Load
from harness.judge.required import timing
from harness.judge.required.audit import incomplete
from harness.judge.required.expected import Expected
from harness.judge.required.identity import untrusted
from harness.judge.stats.baseline import Baseline, Sample
from tests.judge.simulator import config_of, evidence_for, judge
from tests.judge.timed import timed

ROUNDS = 3
SAMPLE = Sample(run_id="night-1", started="2026-01-01T00:00:00Z", seconds=0.5)
SLOPES = [("rotary", 4), ("rotary", 16), ("rotary", 64), ("rotary", 256)]
STEPS = [("step", count) for _, count in SLOPES]


def problems_of(evidence: CellEvidence, rank: int = 0) -> list[str]:
    return list(timing.problems(Expected(evidence), evidence.records[rank]))


def evidence_of(config: TimingConfig, *loads: Load, rounds: int = ROUNDS, **layout: Any) -> CellEvidence:
    """A timed cell whose ranks recorded every load in all rounds."""
    evidence = evidence_for(replace(config_of("sft", **layout), timing=replace(config, rounds=ROUNDS)))
    for record in evidence.records.values():
        record.warmup_rounds = 1
        record.timings = [
            Timed(load=name, documents=count, round=number, seconds=0.5)
            for number in range(rounds)
            for name, count in loads
        ]
    return evidence


UNPACKED = TimingConfig(unpacked=True)
BOTH = (("packed", 0), ("unpacked", 0))


def after(change: Callable[[RankRecord], object]) -> list[str]:
    """Problems of a cell that times packed and unpacked rows, after a change of its record."""
    evidence = evidence_of(UNPACKED, *BOTH)
    change(evidence.records[0])
    return problems_of(evidence)


@pytest.mark.parametrize(
    ("config", "loads"),
    [
        (TimingConfig(unpacked=True), BOTH),
        (TimingConfig(full_rows=True), (("packed", 0), ("full", 0))),
        (TimingConfig(unpacked=True, full_rows=True), (*BOTH, ("full", 0))),
        (TimingConfig(turns="pair"), (("turn", 0),)),
        (
            TimingConfig(documents=(4, 16)),
            (("rotary", 4), ("rotary_other", 16), ("rotary", 16), ("rotary_other", 4), ("step", 4), ("step", 16)),
        ),
    ],
)
def test_a_rank_that_timed_everything_has_no_problem(config: TimingConfig, loads: tuple[Load, ...]) -> None:
    assert problems_of(evidence_of(config, *loads)) == []


def test_only_rank_0_times_the_rotary_function() -> None:
    evidence = evidence_of(TimingConfig(documents=(4,)), ("step", 4), tp=2)
    assert problems_of(evidence, 1) == []
    assert problems_of(evidence, 0) == [
        "timings: recorded for [('step', 4)], expected for [('rotary', 4), ('rotary_other', 4), ('step', 4)]"
    ]


def test_simulated_times_have_no_problem() -> None:
    assert problems_of(timed({("packed", 0): 0.1, ("unpacked", 0): 0.1})) == []
    assert problems_of(timed(dict.fromkeys([*SLOPES, *STEPS], 0.1))) == []


@pytest.mark.parametrize("value", [-0.5, math.inf, math.nan])
def test_times_of_steps_and_legs_are_finite_and_not_negative(value: float) -> None:
    evidence = evidence_for(config_of("sft", canaries=("determinism",)))
    record = evidence.records[0]
    record.steps[1].time_s = record.steps[0].busy_s = record.legs[0].time_s = value
    assert problems_of(evidence) == [
        f"steps: step 0: busy_s is {value!r}",
        f"steps: step 1: time_s is {value!r}",
        f"legs: determinism: time_s is {value!r}",
    ]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_the_time_of_the_set_up_is_finite(value: float) -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].setup_s = value
    assert problems_of(evidence) == [f"setup_s is {value!r}"]


def test_a_cell_that_is_not_timed_has_no_problem() -> None:
    assert problems_of(evidence_for(config_of("sft", canaries=("determinism",)))) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timings", [Timed(load="packed", documents=0, round=0, seconds=0.5)]),
        ("untimed", {"rotary": "why"}),
        ("warmup_rounds", 1),
        ("gpu_states", [GpuState(when="before")]),
    ],
)
def test_a_cell_that_is_not_timed_has_no_times(name: str, value: object) -> None:
    evidence = evidence_for(config_of("sft"))
    setattr(evidence.records[0], name, value)
    assert problems_of(evidence) == ["timings: present, though the cell is not timed"]


@pytest.mark.parametrize(
    ("torch_device", "requested", "right"), [("cpu", 0, 1), ("cuda:1", 0, 3), ("cpu", 5, 5), ("cuda:0", 5, 5)]
)
def test_the_number_of_warm_up_rounds_depends_on_the_device(torch_device: str, requested: int, right: int) -> None:
    evidence = evidence_of(replace(UNPACKED, warmup=requested), *BOTH)
    record = evidence.records[0]
    record.environment["torch_device"] = torch_device
    record.warmup_rounds = right
    assert problems_of(evidence) == []
    record.warmup_rounds = right + 1
    assert problems_of(evidence) == [f"warmup_rounds is {right + 1}, not {right}"]


@pytest.mark.parametrize("torch_device", ["", "xpu:0"])
def test_a_damaged_device_of_a_timed_cell_leaves_it_undecided(torch_device: str) -> None:
    evidence = evidence_of(UNPACKED, *BOTH)
    evidence.records[0].environment["torch_device"] = torch_device
    assert problems_of(evidence) == []  # the environment's problem is named with the other facts
    assert incomplete(evidence).startswith("incomplete evidence: record of rank 0: environment: ")


def test_every_load_must_be_timed() -> None:
    found = after(lambda record: setattr(record, "timings", [one for one in record.timings if one.load != "packed"]))
    assert found == ["timings: recorded for [('unpacked', 0)], expected for [('packed', 0), ('unpacked', 0)]"]


def test_no_other_load_may_be_timed() -> None:
    evidence = evidence_of(UNPACKED, *BOTH, ("full", 0))
    assert problems_of(evidence) == [
        "timings: recorded for [('full', 0), ('packed', 0), ('unpacked', 0)], "
        "expected for [('packed', 0), ('unpacked', 0)]"
    ]


@pytest.mark.parametrize(
    ("change", "rounds"),
    [
        (lambda record: record.timings.pop(), [0, 1]),
        (lambda record: record.timings.append(record.timings[-1]), [0, 1, 2, 2]),
        (lambda record: setattr(record.timings[-1], "round", 3), [0, 1, 3]),
    ],
)
def test_every_load_runs_once_in_every_round(change: Callable[[RankRecord], object], rounds: list[int]) -> None:
    assert after(change) == [f"timings: unpacked with 0 documents has rounds {rounds}, not [0, 1, 2]"]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_time_is_positive_and_finite(seconds: float) -> None:
    found = after(lambda record: setattr(record.timings[1], "seconds", seconds))
    assert found == [f"timings: unpacked took {seconds!r} s in round 0"]


def test_a_load_that_the_stack_cannot_run_is_left_out() -> None:
    evidence = evidence_of(TimingConfig(documents=(4,)), ("rotary", 4), ("step", 4))
    evidence.records[0].untimed = {"rotary_other": "it has no fused rotary function"}
    assert problems_of(evidence) == []


def test_packed_rows_are_timed_only_beside_others() -> None:
    evidence = evidence_of(UNPACKED)
    evidence.records[0].untimed = {"unpacked": "the layout cannot run it"}
    assert problems_of(evidence) == []
    evidence = evidence_of(replace(UNPACKED, full_rows=True), ("packed", 0), ("full", 0))
    evidence.records[0].untimed = {"unpacked": "the layout cannot run it"}
    assert problems_of(evidence) == []


def test_a_load_that_was_not_timed_has_a_reason() -> None:
    evidence = evidence_of(TimingConfig(documents=(4,)), ("rotary", 4), ("step", 4))
    evidence.records[0].untimed = {"rotary_other": ""}
    assert problems_of(evidence) == ["untimed: rotary_other has no reason"]


TURN = TimingConfig(turns="pair")


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_turns_may_end_early_with_a_reason(rounds: int) -> None:
    evidence = evidence_of(TURN, ("turn", 0), rounds=rounds)
    evidence.records[0].untimed = {"turn": "the other stack ended"}
    assert problems_of(evidence) == []


def test_turns_that_end_early_without_a_reason_are_incomplete() -> None:
    evidence = evidence_of(TURN, ("turn", 0), rounds=2)
    assert problems_of(evidence) == ["timings: turn with 0 documents has rounds [0, 1], not [0, 1, 2]"]


def test_turns_that_end_early_have_the_first_rounds() -> None:
    evidence = evidence_of(TURN, ("turn", 0), rounds=2)
    evidence.records[0].untimed = {"turn": "the other stack ended"}
    evidence.records[0].timings[0].round = 2
    assert problems_of(evidence) == ["timings: turn with 0 documents has rounds [1, 2], not [0, 1]"]


def nightly(*samples: Sample) -> CellEvidence:
    """A cell of two ranks whose matrix asks for a comparison with earlier runs."""
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.history = BaselineRequest(runs=20)
    evidence.before = Baseline(runs=20, samples={"processor x 8": list(samples)})
    for record in evidence.records.values():
        for step in record.steps:
            step.busy_s = 0.4
    return evidence


@pytest.mark.parametrize("count", [0, 1, 10])
def test_times_can_be_compared_however_many_earlier_runs_there_are(count: int) -> None:
    assert timing.uncompared(nightly(*[SAMPLE] * count)) == ""
    assert judge(nightly(*[SAMPLE] * count)).outcome is Outcome.PASS


def test_a_cell_that_is_not_compared_with_earlier_runs_needs_no_times() -> None:
    evidence = nightly()
    evidence.history, evidence.before = None, None
    for record in evidence.records.values():
        record.steps[1].busy_s = 0.0
    assert timing.uncompared(evidence) == ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda evidence: setattr(evidence, "before", None), "baseline.json has no entry of this cell"),
        (
            lambda evidence: setattr(evidence, "before", Baseline(runs=3)),
            "baseline.json says 3 runs, plan.json 20",
        ),
        *(
            (
                lambda evidence, value=value: setattr(evidence.records[1].steps[1], "busy_s", value),
                f"record of rank 1: steps: step 1: busy_s is {value!r}",
            )
            for value in (0.0, math.nan)
        ),
    ],
)
def test_a_requested_comparison_that_damage_prevents_is_undecided(
    change: Callable[[CellEvidence], object], why: str
) -> None:
    evidence = nightly(*[SAMPLE] * 10)
    change(evidence)
    assert timing.uncompared(evidence) == why
    assert judge(evidence).outcome is Outcome.ERROR


def test_the_first_step_warms_up_and_is_not_compared() -> None:
    evidence = nightly()
    evidence.records[0].steps[0].busy_s = 0.0
    assert timing.uncompared(evidence) == ""


def test_on_a_gpu_the_timing_leg_is_compared() -> None:
    evidence = nightly()
    evidence.records[0].steps[1].busy_s = 0.0
    for record in evidence.records.values():
        record.environment = {**record.environment, "device": "NVIDIA H200"}
    assert timing.uncompared(evidence) == ""


def test_a_missing_baseline_does_not_hide_a_failure() -> None:
    evidence = nightly()
    evidence.before = None
    for record in evidence.records.values():
        record.steps[0].grad_norm = 4.0
    assert judge(evidence).outcome is Outcome.FAIL


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_times_of_earlier_runs_must_be_possible(seconds: float) -> None:
    evidence = nightly(SAMPLE, replace(SAMPLE, seconds=seconds))
    assert untrusted(evidence) == f"baseline.json: run night-1 took {seconds!r} s"
