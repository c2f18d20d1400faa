"""A cell of which some numbers are compared with nothing."""

from __future__ import annotations

import io
from dataclasses import replace
from xml.etree import ElementTree

from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report
from harness.core.tolerances import Bound
from harness.judge.checks import gradients
from harness.judge.weight import not_compared
from harness.reporting.build import judge_cells, report_of
from harness.reporting.console import print_report
from harness.reporting.html.report import render_html
from harness.reporting.render_json import render_json
from harness.reporting.render_junit import render_junit
from harness.reporting.render_markdown import render_markdown
from tests.judge.checks.whole import off
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import config_of, judge, run_of

EVERYTHING = (
    "compared with nothing, since the control has other rows: gradients, gradient norm, first update, steps after the "
    "first"
)


def report() -> Report:
    evidence = with_predictions("sft", tp=2)
    plan, _ = run_of([evidence.cell.config])
    assert evidence.control is not None
    found = judge_cells(plan, [evidence.control, evidence], today="2026-01-01", crashed=lambda cell, error: str(error))
    return report_of(plan, found, timing={}, provenance=Provenance())


def test_the_lane_is_partial_and_the_outcome_stays() -> None:
    verdict = judge(with_predictions("sft", tp=2))
    assert (verdict.outcome, verdict.lanes[Lane.NUMERICS]) == (Outcome.PASS, LaneVerdict.PARTIAL)
    assert verdict.lanes[Lane.METADATA] is LaneVerdict.PASS


def test_updates_that_a_large_bound_of_gradients_would_accept_are_named() -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    cell = list(evidence.values())[1]
    assert not_compared(cell) == ""
    cell.tolerances = replace(cell.tolerances, parameter_gradient=Bound(value=0.3))
    assert not_compared(cell) == (
        "compared with nothing, since gradients may differ by 0.3 and any update would pass: second moments, the first "
        "update, the change over all steps"
    )
    assert judge(cell).lanes[Lane.NUMERICS] is LaneVerdict.PARTIAL


def test_every_report_says_what_was_compared_with_nothing() -> None:
    told = report()
    stream = io.StringIO()
    print_report(told, [], stream)
    junit = render_junit(told)
    cell = told.cells[-1]
    assert (cell.lanes[Lane.NUMERICS], cell.evidence.not_compared) == ("partial", EVERYTHING)
    assert f"part  1 cell: {EVERYTHING}" in stream.getvalue()
    assert "PASS: 2 PASS (1 in part); exit code 0" in stream.getvalue()
    said = ElementTree.fromstring(junit).findall(f".//testcase[@name='{cell.id}']/system-out")
    assert [one.text for one in said] == [f"PASS: {EVERYTHING}"]
    assert "## Judged in part" in render_markdown(told)
    assert "PASS, in part" in render_markdown(told)
    assert '"numerics": "partial"' in render_json(told)
    page = render_html(told)
    assert "2 passed, 1 of them in part." in page
    assert "<small>in part</small>" in page


def test_a_cell_that_is_compared_whole_is_not_partial() -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    assert {judge(item).lanes[Lane.NUMERICS] for item in evidence.values()} == {LaneVerdict.PASS}


def test_gradients_of_other_rows_are_compared_with_nothing() -> None:
    evidence = with_routers("sft")
    evidence.records[0].steps[0].grad_norm = 144.0
    for seen in evidence.records[0].parameters:
        off(seen.gradient, 144.0)
    assert gradients.parameter_gradients(evidence) == gradients.grad_norm(evidence) == []


def test_metadata_do_not_pass_where_a_rank_compared_no_batch() -> None:
    evidence = with_predictions("sft", tp=2)
    evidence.records[1].batches = []
    assert judge(evidence).lanes[Lane.METADATA] is not LaneVerdict.PASS
