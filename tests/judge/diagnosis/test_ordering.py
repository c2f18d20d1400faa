from __future__ import annotations

from harness.core.outcomes import Finding, Lane, LaneVerdict, Outcome, Severity
from harness.core.run.records import Failure, SeenParams
from harness.judge.diagnosis.fault_classes import led_by_root
from tests.judge.checks.numerics.test_ended import IN_CODE, cut_off
from tests.judge.reports import build_report
from tests.judge.simulator import alter_params, at, config_of, drop_params, evidence_for, judge, run_of

NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
)


def seen(check: str, lane: Lane = Lane.METADATA, severity: Severity = Severity.ERROR, **where: object) -> Finding:
    return Finding(lane=lane, check=check, message=check, severity=severity, where=where, fault_class=check)


def names(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings]


def test_findings_are_in_order_of_the_pipeline_not_of_the_checks() -> None:
    """Like a release that loses the metadata of the last stage and garbles that of the middle stages."""
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    for record in at(evidence, pp=3, tp=1):
        drop_params(record)

    def garbage(params: SeenParams) -> None:
        params.max_seqlen_q = params.max_seqlen_kv = 93824992231648

    for stage in (1, 2):
        for record in at(evidence, pp=stage, tp=1):
            alter_params(record, garbage)
    first, second = judge(evidence).findings[:2]
    assert (first.check, first.where["stage"]) == ("params_agree_plan", 1)
    assert (second.check, second.where["stage"]) == ("params_present", 3)


def test_data_comes_before_the_model_then_step_stage_layer_and_micro_batch() -> None:
    places = [
        {"leg": "metadata", "step": 0, "stage": 0, "micro_batch": 1},
        {"leg": "metadata", "step": 0, "stage": 1, "micro_batch": 0},
        {"leg": "training", "step": 0, "stage": 0, "layer": 1, "micro_batch": 1},
        {"leg": "training", "step": 0, "stage": 0, "layer": 2, "micro_batch": 0},
        {"leg": "training", "step": 0, "stage": 1, "layer": 3, "micro_batch": 0},
        {"leg": "training", "step": 1, "stage": 0, "layer": 1, "micro_batch": 0},
        {},
    ]
    findings = [seen(f"check{number}", **place) for number, place in enumerate(places)]
    assert names(led_by_root(findings[::-1])) == names(findings)


def test_what_the_model_does_with_wrong_metadata_follows_from_it() -> None:
    findings = led_by_root(
        [
            seen("ended", Lane.NUMERICS, leg="training", step=0),
            seen("activations", Lane.NUMERICS, step=0),
            seen("params_present", stage=1),
            seen("params_form", stage=2),
        ]
    )
    assert [(item.check, item.follows_from) for item in findings] == [
        ("params_present", ""),
        ("params_form", ""),
        ("ended", "params_present"),
        ("activations", "params_present"),
    ]


def test_a_cause_outside_the_code_does_not_follow_from_wrong_metadata() -> None:
    lost = seen("completeness", severity=Severity.WARNING)
    assert [item.follows_from for item in led_by_root([seen("params_present"), lost])] == ["", ""]


def test_numbers_alone_and_a_lone_crash_follow_from_nothing() -> None:
    numbers = [seen("activations", Lane.NUMERICS, step=0), seen("step_loss", Lane.NUMERICS, step=1)]
    assert [item.follows_from for item in led_by_root(numbers)] == ["", ""]
    crash = [seen("completeness", leg="metadata"), seen("ended", Lane.NUMERICS, step=0)]
    assert [item.follows_from for item in led_by_root(crash)] == ["", ""]


def test_a_rank_without_memory_after_a_garbage_max_seqlen_is_shown_as_its_consequence_without_advice() -> None:
    plan, found = run_of([config_of("sft", tp=2, pp=4)])
    *_, evidence = found.values()
    assert evidence.result is not None
    evidence.result.status = "failed"

    def garbage(params: SeenParams) -> None:
        params.max_seqlen_q = params.max_seqlen_kv = 93824992231648

    for record in evidence.records.values():
        cut_off(record, "raised")
        if record.place.pp == 1 and record.place.tp == 1:
            alter_params(record, garbage)
            record.failure = Failure(type="RuntimeError", message=NO_MEMORY, traceback="", time=1.0, frames=[IN_CODE])
    report = build_report(plan, found.values(), today="2026-01-01", timing={})
    cell = next(cell for cell in report.cells if cell.role == "cell")
    assert cell.outcome is Outcome.FAIL
    assert (cell.lanes[Lane.METADATA], cell.lanes[Lane.NUMERICS]) == (LaneVerdict.FAIL, LaneVerdict.FAIL)
    assert [(item.check, item.follows_from) for item in cell.findings] == [
        ("params_agree_plan", ""),
        ("ended", "params_agree_plan"),
    ]
    assert cell.failure is not None
    assert (cell.failure.failure_class, cell.failure.follows_from, cell.failure.advice) == (
        "host-out-of-memory",
        "params_agree_plan",
        "",
    )


def test_an_evaluation_comes_after_the_steps_before_it_and_before_the_next() -> None:
    places: list[dict[str, object]] = [
        {"step": 0},
        {"step": 1},
        {"after": 2},
        {"step": 2},
        {"after": 3},
        {"leg": "order"},
    ]
    findings = [seen(f"check{number}", Lane.NUMERICS, **place) for number, place in enumerate(places)]
    assert names(led_by_root(findings[::-1])) == names(findings)
