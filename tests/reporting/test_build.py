from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.flops import train_flops
from harness.core.outcomes import Outcome
from harness.core.run.report import Report, ReportCell
from harness.core.run.run_plan import Selection
from harness.judge.failures.classification import JobEnding
from harness.reporting.build import throughput
from harness.reporting.render_json import read_report, render_json
from harness.reporting.render_markdown import render_markdown
from tests.judge.reports import build_report
from tests.judge.simulator import TODAY, config_of, run_of, with_oracle
from tests.judge.timed import slope, timed


def _cell(report: Report, start: str) -> ReportCell:
    [cell] = [cell for cell in report.cells if cell.id.startswith(start)]
    return cell


def test_a_clean_run_passes() -> None:
    plan, evidence = run_of([config_of("sft", tp=2), config_of("reference", cp=2)])
    report = build_report(plan, evidence.values(), today=TODAY, timing={"wall_s": 1.0})
    assert report.verdict == "pass"
    assert report.counts[Outcome.PASS] == 3
    assert set(report.counts) == set(Outcome)


def test_counts_verdict_and_provenance(broken_report: Report) -> None:
    counts = {outcome.value: count for outcome, count in broken_report.counts.items() if count}
    assert counts == {"PASS": 2, "FAIL": 3, "XFAIL": 1, "REJECTED": 2, "ERROR": 1}
    assert broken_report.verdict == "fail"
    assert broken_report.provenance.packages == {"megatron-core": "0.19.2"}
    assert broken_report.timing == {"wall_s": 12.25}


@pytest.mark.parametrize(
    ("packing", "tp", "wrong", "scope"),
    [
        ("unpacked", 2, (False, True), "wrong only in this layout: its control on one rank passes"),
        ("sft", 2, (False, True), "wrong by packing or by this layout: its control, unpacked on one rank, passes"),
        ("sft", 2, (True, True), "wrong on one rank already: its control fails too"),
        ("sft", 1, (False, True), "wrong on one rank already"),
    ],
)
def test_a_cell_says_whether_one_rank_is_wrong_already(
    packing: str, tp: int, wrong: tuple[bool, bool], scope: str
) -> None:
    plan, evidence = run_of([config_of(packing, tp=tp)])
    with_oracle(evidence)
    for cell, is_wrong in zip(plan.expansion.cells, wrong, strict=True):
        for record in evidence[cell.id].records.values() if is_wrong else ():
            record.steps[-1].grad_norm = 1.1 * (record.steps[-1].grad_norm or 0.0)
    report = build_report(plan, evidence.values(), today=TODAY, timing={})
    control, cell = report.cells
    assert (cell.outcome, cell.scope) == (Outcome.FAIL, scope)
    assert control.scope == ("wrong on one rank already" if wrong[0] else "")
    assert scope in render_markdown(report) and read_report(render_json(report)) == report


def test_without_the_oracle_nothing_says_what_one_rank_computes() -> None:
    plan, evidence = run_of([config_of("sft", tp=2)])
    for record in evidence[plan.expansion.cells[1].id].records.values():
        record.steps[-1].grad_norm = 1.1 * (record.steps[-1].grad_norm or 0.0)
    report = build_report(plan, evidence.values(), today=TODAY, timing={})
    assert [(cell.outcome, cell.scope) for cell in report.cells] == [(Outcome.PASS, ""), (Outcome.FAIL, "")]


def test_only_undecided_cells_make_the_verdict_error() -> None:
    plan, evidence = run_of([config_of("sft")])
    evidence[plan.expansion.cells[1].id].records.clear()
    assert build_report(plan, evidence.values(), today=TODAY, timing={}).verdict == "error"


def test_rejected_cells_carry_rule_and_arithmetic_whenever_found(broken_report: Report) -> None:
    early, late = broken_report.rejected
    assert (early.rule, early.axes["cp"]) == ("cp.divides", 2)
    assert "63 = 15 x 4 + 3" in early.reason
    assert (late.rule, late.line) == ("stack.data_path", 17)
    assert late.id not in {cell.id for cell in broken_report.cells}


def test_a_cell_carries_what_a_reader_needs(broken_report: Report) -> None:
    cell = _cell(broken_report, "tp2-pp4-cp1-sft")
    assert cell.outcome is Outcome.FAIL
    assert cell.reproduce == f"harness run matrices/smoke.yaml --only {cell.id}"
    assert cell.timing == {"wall_s": 3.5, "steps_s": 1.0, "overhead_s": 2.5}
    assert cell.control == _cell(broken_report, "tp1-pp1-cp1-unpacked").id
    assert cell.line == 12


def test_the_command_that_reproduces_a_cell_names_the_cluster_and_is_quoted() -> None:
    plan, evidence = run_of([config_of("sft")])
    plan = replace(plan, cluster="./my cluster.yaml")
    cell = build_report(plan, evidence.values(), today=TODAY, timing={}).cells[-1]
    assert cell.reproduce == f"harness run matrices/smoke.yaml --cluster './my cluster.yaml' --only {cell.id}"


def test_a_cell_that_never_began_is_explained_by_its_job() -> None:
    plan, evidence = run_of([config_of("sft")])
    lost = evidence[plan.expansion.cells[1].id]
    lost.records.clear()
    assert _cell(build_report(plan, evidence.values(), today=TODAY, timing={}), "tp1-pp1-cp1-sft").failure is None
    lost.job = JobEnding(state="TIMEOUT", log="slurmstepd: error", path="submissions/1n1r.7_0.err")
    lost.__dict__.pop("failure_class", None)
    failure = _cell(build_report(plan, evidence.values(), today=TODAY, timing={}), "tp1-pp1-cp1-sft").failure
    assert failure is not None
    assert (failure.failure_class, failure.evidence) == ("time-limit", "job state TIMEOUT")
    assert failure.log == "submissions/1n1r.7_0.err"


def test_the_rank_picture_shows_which_rank_saw_what(broken_report: Report) -> None:
    cell = _cell(broken_report, "tp2-pp4-cp1-sft")
    assert [view.state for view in cell.ranks] == ["ok", "ok", "missing", "missing", "missing", "missing", "ok", "ok"]
    assert cell.ranks[0].cu_seqlens is not None and cell.ranks[0].cu_seqlens[-1] == 64
    assert cell.ranks[2].cu_seqlens is None
    assert [view.layers for view in cell.ranks[::2]] == [[1], [2], [3], [4]]
    crashed = _cell(broken_report, "tp2-pp1-cp1-sft")
    assert [(view.state, view.ended) for view in crashed.ranks] == [("ok", "raised")] * 2
    assert {view.state for view in _cell(broken_report, "tp1-pp1-cp1-unpacked").ranks} == {"unpacked"}


def test_the_rank_picture_shows_differing_and_absent_ranks() -> None:
    plan, evidence = run_of([config_of("sft", tp=2, pp=2)])
    cell = evidence[plan.expansion.cells[1].id]
    for seen in cell.records[1].packed_params:
        seen.max_seqlen_q = 7
    del cell.records[2]
    report = build_report(plan, evidence.values(), today=TODAY, timing={})
    assert [view.state for view in report.cells[1].ranks] == ["ok", "differs", "no-record", "ok"]
    assert report.cells[1].ranks[1].max_seqlen == 7


def test_the_first_failure_comes_with_its_log(broken_report: Report) -> None:
    failure = _cell(broken_report, "tp2-pp1-cp1-sft").failure
    assert failure is not None
    assert failure.rank == 1
    assert failure.traceback == "Traceback: ..."
    assert failure.log.endswith("/attempt-1/log/rank-00001.log")
    assert "must match b (32)" in failure.message


def test_curves_come_with_those_of_the_control(broken_report: Report) -> None:
    curve = _cell(broken_report, "tp1-pp1-cp2-sft").curve
    assert curve.grad_norm == [4.0, 3.0]
    assert curve.control_grad_norm == [2.0, 3.0]
    assert curve.loss == pytest.approx(curve.control_loss)
    assert 4.0 < curve.loss[0] < 5.5
    assert curve.loss_bound is not None and curve.loss_bound.value == 1e-5
    assert _cell(broken_report, "tp1-pp1-cp1-unpacked").curve.loss_bound is None


def test_throughput_is_per_rank_and_leaves_the_first_step_out() -> None:
    plan, evidence = run_of([config_of("sft", tp=2, dp=2)])
    cell = evidence[plan.expansion.cells[1].id]
    for record in cell.records.values():
        record.steps[0].time_s = 100.0
    cell.records[3].steps[1].time_s = 2.0
    shown = build_report(plan, evidence.values(), today=TODAY, timing={}).cells[1].throughput
    batches = [batch for replica in cell.cell.config.micro_batches(1) for batch in replica]
    assert shown.real_tokens_per_s == sum(batch.real_tokens for batch in batches) / 4 / 2.0
    assert shown.slots_per_s == sum(batch.slots for batch in batches) / 4 / 2.0
    assert shown.efficiency == pytest.approx(sum(b.real_tokens for b in batches) / sum(b.slots for b in batches))
    lengths = [document.length for document in cell.cell.config.documents_of(1)]
    assert shown.tflops_per_s == train_flops(cell.cell.config.model, lengths) / 4 / 2.0 / 1e12
    assert (shown.step_p50_s, shown.step_p95_s) == (2.0, None)
    assert shown.peak_memory_bytes == 1_000_003


def test_compared_times_are_shown_with_interval_and_verdict_whether_slow_or_not() -> None:
    cell = timed(slope("rotary", 0.7) | slope("step", 0.1) | {("packed", 0): 0.05, ("unpacked", 0): 0.1})
    ratios = {ratio.what: ratio for ratio in throughput(cell).ratios}
    assert {what: ratio.verdict for what, ratio in ratios.items()} == {
        "rotary function, 256 documents over 4": "slower",
        "whole step, 256 documents over 4": "no difference",
        "packed over unpacked": "faster",
    }
    slow = ratios["rotary function, 256 documents over 4"]
    assert slow.low < slow.median < slow.high
    assert (slow.rounds, slow.bound.value) == (7, 2.0)
    assert slow.text.endswith("in 7 rounds), bound 2: slower")


def test_evidence_that_cannot_be_read_still_gives_a_cell() -> None:
    plan, evidence = run_of([config_of("sft", tp=2)])
    cell = evidence[plan.expansion.cells[1].id]
    cell.records[1].cell = "other"
    shown = build_report(plan, evidence.values(), today=TODAY, timing={}).cells[1]
    assert shown.outcome is Outcome.ERROR
    assert shown.ranks == [] and shown.failure is None


def test_a_failure_has_its_class_its_domain_and_what_to_do_next(broken_report: Report) -> None:
    failure = _cell(broken_report, "tp2-pp1-cp1-sft").failure
    assert failure is not None
    assert (failure.failure_class, failure.domain, failure.role) == ("python-exception", "code", "root")
    assert (failure.retry, failure.advice) == ("never", "Read the traceback of this rank.")
    assert "The size of tensor a (64) must match b (32)" in failure.evidence


def test_a_selection_and_the_number_of_cells_left_out_reach_the_report_and_its_texts() -> None:
    plan, evidence = run_of([config_of("sft", tp=2)])
    assert build_report(plan, evidence.values(), today=TODAY, timing={}).selection is None
    selection = Selection(
        strength=2, cells=38, allowed=412, covered=310, possible=310, impossible={"rule a": 20, "rule b": 4}
    )
    selected = replace(plan, expansion=replace(plan.expansion, selection=selection))
    report = build_report(selected, evidence.values(), today=TODAY, timing={})
    assert selection.text == "covering 2: 38 of 412 cells cover 310 of 310 pairs (24 not possible)"
    assert f"{selection.text}; 374 cells left out" in render_markdown(report).replace("\\", "")
    assert read_report(render_json(report)).selection == selection
