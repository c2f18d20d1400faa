"""`harness compare` as a user calls it, on saved reports, without training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.cli import main
from harness.core.cell.layout import Coordinates, Layout
from harness.core.outcomes import Finding, KnownFailure, Lane, LaneVerdict, Outcome
from harness.core.run.report import RankView, Report, ReportRejected, Weight
from harness.reporting.render_json import render_json
from tests.sample_report import lanes, passing_report
from tests.two_runs import cell_of, changed, decided, earlier_report, later_report


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_directory(report: Report, name: str) -> Path:
    folder = Path("reports") / name
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    (folder / "report.json").write_text(render_json(report))
    return folder


def test_two_runs_by_id_with_a_regression_between(capsys: pytest.CaptureFixture[str]) -> None:
    run_directory(earlier_report(), "first")
    later = run_directory(later_report(), "second")
    assert main(["compare", "first", "second"]) == 1
    said = capsys.readouterr().out
    assert "REGRESSION: 1 newly failing" in said
    assert "written: reports/second/compare.md" in said
    assert (later / "compare.md").read_text().startswith("# Regression: smoke\n")
    assert "✕ Regression" in (later / "compare.html").read_text()


def test_the_latest_run_against_a_kept_report(capsys: pytest.CaptureFixture[str]) -> None:
    Path("kept.json").write_text(render_json(passing_report()))
    run_directory(passing_report(), "only")
    assert main(["compare", "latest", "--baseline", "kept.json"]) == 0
    assert main(["compare", "kept.json", "latest"]) == 0
    assert capsys.readouterr().out.count("NO REGRESSION: 4 unchanged; exit code 0") == 2


PASSED, FAILED = "tp1-pp1-cp1-sft", "tp1-pp2-cp2-reference"
TWO, UNDECIDED = "tp2-pp1-cp1-sft", "tp2-pp2-cp2-sft"
BF16 = "tp1-pp1-cp1-sft-bf16-0badcafe"
NOISY: dict[str, Any] = {"canaries": {"isolation": "ran", "noise": "ran"}, "reproduce": ""}
RANK_0 = Coordinates(tp=0, cp=0, dp=0, pp=0)
ERROR = Finding(lane=Lane.NUMERICS, check="loss", message="m")


def _weight(**changes: Any) -> Weight:
    return replace(cell_of(earlier_report(), PASSED).evidence, **changes)


def _rank(report: Report, **changes: Any) -> RankView:
    return replace(cell_of(report, PASSED).ranks[0], **changes)


def _ranks(report: Report, **changes: Any) -> list[RankView]:
    first, second = cell_of(report, TWO).ranks
    return [first, replace(second, **changes)]


def _all(report: Report, **changes: Any) -> Report:
    return replace(report, cells=[replace(cell, **changes) for cell in report.cells])


def _curve(report: Report, **changes: Callable[[list[float]], list[float]]) -> Report:
    curve = cell_of(report, PASSED).curve
    changed_lists: dict[str, Any] = {name: change(getattr(curve, name)) for name, change in changes.items()}
    return _with(report, PASSED, curve=replace(curve, **changed_lists))


def _by_control(report: Report, **changes: Any) -> Report:
    return _with(report, PASSED, evidence=_weight(reference="the control"), **changes)


def _undecided_control(report: Report) -> Report:
    name = report.cells[0].id
    return _with(report, name, outcome=Outcome.ERROR, lanes=dict.fromkeys(Lane, LaneVerdict.SKIP), reason="lost a node")


def _canaries(report: Report, **states: str) -> Report:
    return _with(report, TWO, canaries={**cell_of(report, TWO).canaries, **states})


def _rejected(report: Report, **changes: Any) -> list[ReportRejected]:
    return [replace(report.rejected[0], **changes), *report.rejected[1:]]


def _speed(report: Report, **changes: Any) -> Report:
    return _with(report, PASSED, throughput=replace(cell_of(report, PASSED).throughput, **changes))


def _ratio(report: Report, **changes: Any) -> Report:
    (ratio,) = cell_of(report, PASSED).throughput.ratios
    return _speed(report, ratios=[replace(ratio, **changes)])


def _with(report: Report, name: str, **changes: Any) -> Report:
    return decided(changed(report, name, **changes))


@pytest.mark.parametrize(
    ("contradicts", "said"),
    [
        (lambda one: replace(one, cells=[*one.cells, one.cells[0]]), "has cell tp1-pp1-cp1-unpacked"),
        (lambda one: replace(one, rejected=[*one.rejected, *one.rejected]), "more than once"),
        (lambda one: replace(one, counts={**one.counts, Outcome.FAIL: 0}), "its counts have 0 FAIL, its cells"),
        (lambda one: replace(one, cells=one.cells[1:]), "PASS, its cells"),
        (lambda one: replace(one, verdict="pass"), "its verdict is pass, but of its cells fail follows"),
        (lambda one: _with(one, PASSED, lanes=lanes(numerics="fail")), "is PASS, but lane numerics failed"),
        (lambda one: _with(one, PASSED, findings=[ERROR]), "is PASS, but check loss of lane numerics found an error"),
        (lambda one: _with(one, FAILED, outcome=Outcome.PASS), "is PASS, but lane"),
        (lambda one: _with(one, PASSED, lanes=dict.fromkeys(Lane, LaneVerdict.SKIP)), "lane metadata was not judged"),
        (lambda one: _with(one, PASSED, lanes=lanes(numerics="skip")), "lane numerics is skip, with 4 steps"),
        (lambda one: _with(one, PASSED, lanes=lanes(numerics="partial")), "is partial, and not compared: nothing"),
        (lambda one: _with(one, PASSED, evidence=_weight(not_compared="steps")), "is pass, and not compared: steps"),
        (lambda one: _with(one, PASSED, evidence=_weight(records=0)), "it has 1 ranks and 0 records, its layout 1"),
        (lambda one: _with(one, PASSED, evidence=_weight(legs=0)), "no leg of it was completed"),
        (lambda one: _with(one, PASSED, evidence=_weight(numbers=0)), "is pass, with 4 steps and 0 numbers"),
        (lambda one: _with(one, PASSED, evidence=_weight(steps=0)), "is pass, with 0 steps"),
        (lambda one: _with(one, PASSED, ranks=[]), "it has 0 ranks and 1 records, its layout 1"),
        (lambda one: _with(one, PASSED, ranks=[_rank(one, state="missing")]), "its packed params are missing"),
        (lambda one: _with(one, PASSED, ranks=[_rank(one, ended="crashed")]), "rank 0 crashed"),
        (lambda one: _with(one, PASSED, axes={"tp": 4}), "its layout has tp 1, its axes 4"),
        (lambda one: _with(one, PASSED, control="tp1-gone"), "its control, cell tp1-gone, is not in the report"),
        (lambda one: _with(one, PASSED, id="tp1-pp1-cp1-sft-deadbeef"), "its command runs cell tp1-pp1-cp1-sft-"),
        (lambda one: _with(one, PASSED, attempts=0), "it had 0 attempts"),
        (lambda one: _with(one, PASSED, outcome=Outcome.FLAKY), "is FLAKY, but it had 1 attempts"),
        (lambda one: _with(one, PASSED, outcome=Outcome.XPASS), "is XPASS, but of a known failure it is none"),
        (lambda one: _with(one, PASSED, known=KnownFailure.PASSES), "is PASS, but of a known failure it is passes"),
        (lambda one: _with(one, PASSED, fault="seam"), "its faults are [], those of its cells ['seam']"),
        (
            lambda one: replace(one, faults=["seam"], rejected=[], counts={**one.counts, Outcome.REJECTED: 0}),
            "['seam']",
        ),
        (lambda one: _with(one, PASSED, control=cell_of(one, PASSED).id), "is its own control"),
        (lambda one: _with(one, PASSED, group="bf16"), "its group is bf16, that of its control documents-3f2a-fp32"),
        (lambda one: _with(one, PASSED, role="control"), "its role is control, and it is from line 12 of the matrix"),
        (lambda one: _all(one, role="control", line=None), "it has no problems, but no cell under test passed"),
        (lambda one: _curve(one, control_loss=lambda all: [3 * value for value in all]), "its loss of step 0 is 4.8"),
        (lambda one: _curve(one, control_loss=lambda all: [*all[:-1], 9.0]), "its loss of step 3 is 4.28"),
        (lambda one: _curve(one, grad_norm=lambda all: [1e9, *all[1:]]), "its gradient norm of step 0 is 1e+09"),
        (lambda one: _curve(one, loss=lambda all: all[:1]), "has 1 values of the loss, and it trained 4 steps"),
        (
            lambda one: _curve(one, control_loss=lambda _: []),
            "0 values of its reference's loss, compared with the orac",
        ),
        (lambda one: _with(one, PASSED, evidence=_weight(steps=5)), "has 4 values of the loss, and it trained 5 steps"),
        (lambda one: _with(one, PASSED, evidence=_weight(reference="")), "reference's loss, compared with nothing"),
        (lambda one: _by_control(one, control=None), "compared with the control, and its control has no evidence"),
        (lambda one: _by_control(_undecided_control(one)), "compared with the control, which is ERROR"),
        (lambda one: _by_control(later_report()), "is PASS, but its control has another curve"),
        (lambda one: _canaries(one, padding="did not end"), "is PASS, but canary padding did not end"),
        (lambda one: _canaries(one, padding="missed"), "it completed 5 legs, and 1 of its 2 canaries ran"),
        (lambda one: _with(one, TWO, ranks=_ranks(one, place=RANK_0)), "rank 1 is at stage 0, tp 0, cp 0, dp 0, by it"),
        (lambda one: _with(one, TWO, ranks=cell_of(one, TWO).ranks[:1]), "it has ranks 0, its layout 2"),
        (lambda one: _with(one, TWO, layout=Layout(tp=2, dp=2, sp=True), axes={}), "its layout is tp2-pp1-cp1-dp2"),
        (lambda one: _with(one, PASSED, axes={"dtype": "bf16"}), "its dtype is bf16, which its id does not have"),
        (lambda one: _with(one, PASSED, id=BF16, reproduce=""), "its dtype is fp32, by its id it is bf16"),
        (
            lambda one: _with(one, PASSED, id=BF16, axes={"dtype": "bf16"}, **NOISY),
            "noise of its dtype is not in the re",
        ),
        (lambda one: _with(one, PASSED, reason="lost a node"), "is PASS, but it has a reason: lost a node"),
        (lambda one: _with(one, UNDECIDED, reason=""), "is ERROR, but no reason is given"),
        (lambda one: replace(one, rejected=_rejected(one, rule="", rejections=[])), "but no rule and reason are given"),
        (lambda one: replace(one, rejected=_rejected(one, reason="other")), "is not the first that rejects it"),
        (lambda one: _ratio(one, verdict="faster"), "0.96 to 1.05 in 7 rounds), bound 4: faster, but no difference fo"),
        (lambda one: _ratio(one, median=9.0, low=8.0, high=9.9, verdict="slower"), "documents over 4 is 9 times"),
        (
            lambda one: _speed(one, step_times_s=[1.0, 2.0, 3.0]),
            "its median step took 0.031 s, its steps [1.0, 2.0, 3.0]",
        ),
        (lambda one: _with(one, FAILED, lanes=lanes()), "is FAIL, but no lane failed"),
        (lambda one: _with(one, FAILED, lanes={Lane.NUMERICS: LaneVerdict.FAIL}), "it has no lane metadata"),
        (lambda one: _with(one, FAILED, findings=[]), "is FAIL, but lane numerics failed without a finding"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(
    contradicts: Callable[[Report], Report], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is a report in which one thing was changed that follows from the others."""
    run_directory(earlier_report(), "first")
    run_directory(contradicts(earlier_report()), "second")
    assert main(["compare", "first", "second"]) == 2
    found = capsys.readouterr().err
    assert "second/report.json: report.json contradicts itself: " in found
    assert said in found
    assert "harness report RUN rewrites it" in found


def test_reports_of_earlier_versions_do_not_say_with_what_numbers_were_compared() -> None:
    older = earlier_report()
    cells = [replace(cell, evidence=replace(cell.evidence, reference="")) for cell in older.cells]
    folders = [run_directory(replace(older, cells=cells), "first"), run_directory(earlier_report(), "second")]
    assert main(["compare", *map(str, folders)]) == 0


def test_json_goes_to_stdout_and_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [run_directory(earlier_report(), "first"), run_directory(later_report(), "second")]
    assert main(["compare", "--json", *map(str, folders)]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "regression"
    assert sorted(path.name for path in folders[1].iterdir()) == ["plan.json", "report.json"]


def test_the_factor_that_counts_as_slower_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(run_directory(earlier_report(), "first")), str(run_directory(later_report(), "second"))]
    main(["compare", *folders, "--json", "--slower-than", "4"])
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [cell["regressions"] for cell in cells if cell["regressions"]] == [["newly failing"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["first"], "two reports are needed"),
        (["first", "second", "--baseline", "kept.json"], "two reports are needed"),
        (["first", "third"], "no run 'third'"),
        (["first", "unjudged"], "harness report reports/unjudged"),
        (["first", "broken.json"], "report.json is not JSON"),
        (["first", "other.json"], "schema_version None; this harness reads 2"),
        (["first", "--baseline", "gone.json"], "no run 'gone.json'"),
    ],
)
def test_bad_input_says_what_to_do(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_directory(earlier_report(), "first")
    run_directory(earlier_report(), "second")
    (run_directory(earlier_report(), "unjudged") / "report.json").unlink()
    Path("broken.json").write_text("{")
    Path("other.json").write_text("{}")
    assert main(["compare", *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_factor_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "first", "second", "--slower-than", "0.5"])
    assert ended.value.code == 2
    assert "invalid factor above 1 value" in capsys.readouterr().err
