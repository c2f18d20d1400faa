"""`pytest --harness matrix.yaml`: an item per cell, run by pytest itself."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import harness
from harness.cli import api
from harness.core.outcomes import Outcome
from harness.launch.stacks.build import uv_environment
from tests.cli.conftest import MATRIX, only_run, write_matrix
from tests.judge.simulator import config_of
from tests.sample_report import sample_report
from tests.two_runs import changed

pytest_plugins = ("pytester",)
FLAGS = ("--harness", "small.yaml", "-p", "no:cacheprovider")


def planned(report: harness.Report) -> harness.Expansion:
    """The expansion from which the report may come; its second rejected cell is rejected only when it runs."""
    first, *others = report.rejected
    both = [*report.cells, *others]
    cells = [harness.PlannedCell(id=one.id, axes={}, config=config_of("sft"), group="", control=None) for one in both]
    rejected = harness.RejectedCell(id=first.id, axes={}, rejections=tuple(first.rejections), line=first.line)
    return harness.Expansion(cells=tuple(cells), rejected=(rejected,))


@pytest.fixture
def calls(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every outcome that a cell can have, as if run; the arguments of each run."""
    report = changed(sample_report(), "tp1-pp2-cp1-vpp2", outcome=Outcome.XPASS, reason="fixed in 0.18.2")
    seen: list[dict[str, Any]] = []

    def run(matrix: str, **options: Any) -> harness.Report:
        seen.append({"matrix": matrix, **options})
        return report

    monkeypatch.setattr(api, "run", run)
    monkeypatch.setattr(api, "expand", lambda *_, **__: planned(report))
    monkeypatch.setitem(api._FOLDERS, report.run_id, pytester.path / "reports" / report.run_id)
    write_matrix(pytester.path)
    return seen


def test_every_outcome_has_its_counterpart(calls: list[dict[str, Any]], pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*FLAGS, "--junitxml=j.xml", "-rxXsP")
    result.assert_outcomes(passed=6, failed=2, errors=1, xfailed=1, xpassed=1, skipped=2)
    text = result.stdout.str()
    assert "SKIPPED [1] small.yaml:21: rejected by cp-alignment: seq_length 62 % (2 * cp) = 62 % 4 = 2" in text
    assert "fixed upstream in 0.18.2" in text
    assert "node n17 was lost" in text
    assert "flaky: passed on attempt 2" in text
    assert text.count("Traceback") == 1  # of the rank
    cases = ElementTree.parse(pytester.path / "j.xml").getroot().findall(".//testcase")
    assert len(cases) == 13
    failed = [case for case in cases if case.find("failure") is not None]
    details = failed[0].findtext("failure") or ""
    assert "error metadata/params_present" in details
    assert "reproduce: harness run" in details
    assert "pytest_plugin.py" not in text
    walls = {cell.id: cell.timing["wall_s"] for cell in sample_report().cells}
    times = {str(case.get("name")): float(str(case.get("time"))) for case in cases if case.find("skipped") is None}
    assert {name: round(time) for name, time in times.items()} == {name: round(walls[name]) for name in times}


def test_a_cell_that_was_not_run_is_skipped(
    calls: list[dict[str, Any]], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = changed(sample_report(), "tp1-pp2-cp1-vpp2", outcome=Outcome.NOT_RUN, reason="the run ended before it")
    monkeypatch.setattr(api, "run", lambda *_, **__: report)
    result = pytester.runpytest_inprocess(*FLAGS, "-k", "vpp2", "-rs")
    result.assert_outcomes(skipped=1, deselected=12)
    result.stdout.fnmatch_lines(["SKIPPED*the run ended before it"])


def test_all_cells_run_at_once_and_only_those_that_are_selected(
    calls: list[dict[str, Any]], pytester: pytest.Pytester
) -> None:
    pytester.runpytest_inprocess(*FLAGS, "-k", "vpp2 or cp2-sft").assert_outcomes(
        xpassed=1, errors=1, skipped=1, deselected=10
    )
    pytester.runpytest_inprocess(*FLAGS).assert_outcomes(passed=6, failed=2, errors=1, xfailed=1, xpassed=1, skipped=2)
    assert [len(call["only"]) for call in calls] == [2, 0]
    assert [call["matrix"] for call in calls] == ["small.yaml"] * 2


def test_the_options_are_passed_on(calls: list[dict[str, Any]], pytester: pytest.Pytester) -> None:
    more = ("--harness-set", "train.steps=1", "--harness-cluster", "lab", "--harness-run-dir", "runs")
    pytester.runpytest_inprocess(*FLAGS, *more, "--harness-no-history", "-s", "-k", "unpacked")
    (call,) = calls
    assert (call["settings"], call["cluster"], call["run_dir"]) == (["train.steps=1"], "lab", Path("runs"))
    assert (call["record"], call["show"]) == (False, True)


def test_nothing_runs_when_cells_are_only_collected(calls: list[dict[str, Any]], pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(*FLAGS, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["small.yaml::tp1-pp1-cp1-unpacked-*", "13 tests collected*"])
    assert calls == []


def test_other_tests_are_collected_only_when_named(calls: list[dict[str, Any]], pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_other="def test_one(): pass")
    alone = pytester.runpytest_inprocess(*FLAGS, "-k", "test_one or unpacked")
    alone.assert_outcomes(passed=1, deselected=12)
    beside = pytester.runpytest_inprocess(*FLAGS, "test_other.py", "-k", "test_one or unpacked")
    beside.assert_outcomes(passed=2, deselected=12)


def test_a_run_that_proves_nothing_does_not_pass(
    calls: list[dict[str, Any]], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    undecided = replace(sample_report(), verdict="error", problems=["no cell under test passed (1 XFAIL)"])
    monkeypatch.setattr(api, "run", lambda *_, **__: undecided)
    result = pytester.runpytest_inprocess(*FLAGS, "-k", "tp2-pp1-cp2")
    result.assert_outcomes(xfailed=1, skipped=1, deselected=11)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["small.yaml: no cell under test passed (1 XFAIL)", "small.yaml: report: *report.html"])


@pytest.mark.parametrize(
    ("error", "ret", "said"),
    [
        (harness.InfrastructureError("no space in the run directory"), 1, "*no space in the run directory*"),
        (harness.InterruptedRun("ended by SIGINT: 2 of 5 cells are judged"), 2, "*Exit: harness: ended by SIGINT: 2 *"),
    ],
)
def test_a_run_that_cannot_end_is_an_error_of_every_cell_or_ends_the_session(
    calls: list[dict[str, Any]],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    error: harness.HarnessError,
    ret: int,
    said: str,
) -> None:
    def run(*_: Any, **__: Any) -> harness.Report:
        calls.append({})
        raise error

    monkeypatch.setattr(api, "run", run)
    result = pytester.runpytest_inprocess(*FLAGS, "-k", "reference")
    assert result.ret == ret
    result.stdout.fnmatch_lines([said])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("text", "flags", "said"),
    [
        (MATRIX.replace("steps: 2", "stepps: 2"), (), "*train.stepps: unknown key*did you mean 'steps'*"),
        (MATRIX, ("--harness", "gone.yaml"), "*--harness gone.yaml: no such file*"),
        (MATRIX, ("--harness-set", "train"), "*--set: needs a key, an equals sign and a value*"),
    ],
)
def test_wrong_input_says_what_is_wrong(
    pytester: pytest.Pytester, text: str, flags: tuple[str, ...], said: str
) -> None:
    write_matrix(pytester.path, text)
    result = pytester.runpytest_inprocess(*FLAGS, *flags)
    assert result.ret not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    both = [*result.outlines, *result.errlines]
    pytest.LineMatcher(both).fnmatch_lines([said])


def test_workers_of_xdist_are_refused_and_none_are_fine(
    root: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real plug-in, which the development environment does not have."""
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--target", "xdist", "--no-deps"]
    constraints = root / "constraints.txt"
    subprocess.run(
        [*uv, "--constraints", constraints, "pytest-xdist", "execnet"],
        check=True,
        env=uv_environment(),
        cwd=pytester.path,
    )
    monkeypatch.setenv("PYTHONPATH", str(pytester.path / "xdist"))
    write_matrix(pytester.path)
    refused = pytester.runpytest_subprocess(*FLAGS, "-n", "2")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*--harness cannot be used with workers of pytest-xdist; leave out -n:*"])
    pytester.runpytest_subprocess(*FLAGS, "-n", "0", "--collect-only").assert_outcomes()


def test_without_the_option_the_plug_in_loads_nothing_and_adds_no_hook(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_one(pytestconfig):
            loaded = [name for name in sys.modules if name.startswith("harness.")]
            modules = ["harness.campaign.options", "harness.cli.pytest_plugin"]
            assert sorted(loaded) == sorted(["harness.campaign", "harness.cli", *modules])
            assert not pytestconfig.pluginmanager.hasplugin("harness-cells")
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.train
@pytest.mark.smoke
def test_cells_are_trained_once_for_all_items(pytester: pytest.Pytester) -> None:
    write_matrix(pytester.path, MATRIX.replace('["tp == pp"]', '["pp == 1"]').replace("[1, 2]", "[1, 3]", 1))
    settings = ("--harness-set", "train.steps=1", "--harness-set", "xfail=[{pattern: '*sft', reason: soon}]")
    result = pytester.runpytest_subprocess(*FLAGS, *settings, "--harness-run-dir", "runs")
    result.assert_outcomes(passed=2, xpassed=1, skipped=2)
    report = harness.read_report(only_run(pytester.path / "runs"))
    assert [cell.outcome for cell in report.cells] == [Outcome.PASS, Outcome.PASS, Outcome.XPASS]
    assert len(report.rejected) == 2
