"""The Python interface: the examples of its page run, and calls do what the commands do without printing."""

from __future__ import annotations

import ast
import doctest
import inspect
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import harness
from harness.campaign.finalize import RunResult
from harness.campaign.options import OPTIONS, RunOptions, VerdictOptions, run_options
from harness.cli import api
from harness.cli.cli import build_parser
from harness.core.outcomes import Outcome
from harness.infra import screen
from tests.cli.conftest import write_matrix
from tests.cli.runs import simulated_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.train
def test_the_examples_of_the_page_are_true(root: Path, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = (root / "docs" / "api.md").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    write_matrix(here, matrix)
    parsed = doctest.DocTestParser().get_doctest(page.replace("```\n", "\n"), {}, "api.md", "docs/api.md", 0)
    said: list[str] = []
    found = doctest.DocTestRunner().run(parsed, out=said.append)
    assert found.failed == 0, "".join(said)
    assert found.attempted > 10
    assert capfd.readouterr() == ("", "")


def test_a_false_example_is_found() -> None:
    parsed = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n\n", {}, "page", "page", 0)
    assert doctest.DocTestRunner().run(parsed, out=lambda text: None).failed == 1


def test_importing_the_package_loads_nothing_of_it_and_ranks_need_no_launcher() -> None:
    code = "import sys, harness; print([name for name in sys.modules if name.startswith('harness.')], dir(harness)[:0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


def test_all_lists_of_names_are_the_same() -> None:
    """The one for type checkers, the one that is loaded, and what the interface defines."""
    tree = ast.parse(Path(harness.__file__).read_text(encoding="utf-8"))
    (typed,) = [[alias.name for alias in node.names] for node in ast.walk(tree) if _imports_api(node)]
    assert typed == harness.__all__ == api.__all__ == sorted(typed)
    assert {name: getattr(harness, name) for name in typed} == {name: getattr(api, name) for name in typed}
    with pytest.raises(AttributeError, match="has no attribute 'rum'"):
        _ = harness.rum


def _imports_api(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "harness.cli.api"


def test_judging_again_writes_reports_records_and_logs_instead_of_printing(
    here: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(here / "summary.md"))
    run = simulated_run(here / "reports")
    (here / "no-folder").write_text("")
    with caplog.at_level(logging.INFO, logger="harness"):
        report = harness.report("latest", history=here / "no-folder" / "history.sqlite")
    assert capfd.readouterr() == ("", "")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is not recorded in the history" in caplog.text
    assert not (here / "summary.md").exists()
    assert {cell.outcome for cell in report.cells} == {Outcome.PASS}
    assert harness.read_report(run.root / "report.json") == report
    assert harness.compare("latest", report).verdict == "no regression"
    assert harness.run_folder(report, run_dir="nowhere") == run.root


def test_the_folder_of_a_report_that_was_read_is_found_under_a_parent(here: Path) -> None:
    run = simulated_run(here / "runs", "small-1")
    harness.report(run.root, record=False)
    api._FOLDERS.clear()
    report = harness.read_report("small-1", run_dir="runs")
    assert harness.run_folder(report, run_dir="runs") == run.root
    with pytest.raises(harness.InputError, match="no run 'small-1'"):
        harness.run_folder(report)


def test_what_the_command_prints_can_be_shown(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    simulated_run(here / "reports")
    harness.report("latest", record=False, show=True)
    assert "exit code 0" in capfd.readouterr().out


def test_the_state_of_the_process_is_as_before_also_after_an_error(here: Path) -> None:
    old = os.umask(0o007)
    try:
        with pytest.raises(harness.InputError, match="no run 'gone'"):
            harness.report("gone")
        assert os.umask(0o007) == 0o007
    finally:
        os.umask(old)
    assert not screen.VIEW.silent
    assert not screen.VIEW.quiet


def test_arguments_become_the_options_of_the_command(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    seen = {}

    def command(matrix: Path, options: RunOptions, words: list[str]) -> RunResult:
        seen.update(matrix=matrix, options=options, words=words)
        raise harness.InfrastructureError("far enough")

    monkeypatch.setattr("harness.cli.commands.run.run", command)
    with pytest.raises(harness.InfrastructureError):
        harness.run(
            "smoke",
            only=["tp1-*"],
            expression="sft",
            settings={"train.steps": 1, "matrix.tp": [1, 2], "name": "x: y"},
            cluster="slurm-lab",
            run_dir="runs",
            record=False,
            history="nights.sqlite",
            notify=["true"],
            maxfail=2,
            max_gpu_hours=1.5,
            fault="middle-stages-without-metadata",
        )
    options = seen["options"]
    assert options == RunOptions(
        only=["tp1-*"],
        expression="sft",
        settings=["train.steps=1", "matrix.tp=[1, 2]", 'name="x: y"'],
        fault="middle-stages-without-metadata",
        cluster="slurm-lab",
        run_dir=Path("runs"),
        history=Path("nights.sqlite"),
        record=False,
        notify=["true"],
        maxfail=2,
        max_gpu_hours=1.5,
    )
    assert seen["matrix"].name == "smoke.yaml"
    parsed = build_parser().parse_args(seen["words"][1:])
    assert run_options(parsed) == options
    assert parsed.matrix == seen["matrix"]


def test_run_has_the_options_of_the_command_line_with_their_defaults() -> None:
    keywords = inspect.signature(harness.run).parameters
    declared = {name: option.default for name, option in OPTIONS.items() if option.in_python}
    assert {name: one.default for name, one in keywords.items() if name not in ("matrix", "show")} == declared
    of_report = inspect.signature(harness.report).parameters
    for name in VerdictOptions.__annotations__:
        assert of_report[name].default == declared[name]


def test_an_unknown_fault_is_an_input_error_before_anything_runs(here: Path) -> None:
    with pytest.raises(harness.InputError, match="middle-stages-without-metadata"):
        harness.run("smoke", fault="middle-stages-without-metadat")
    assert not (here / "reports").exists()


def test_only_what_failed_before_needs_a_run_before(here: Path) -> None:
    with pytest.raises(harness.InputError, match="no finished run of small"):
        harness.run(write_matrix(here), failed=True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: harness.expand("gone.yaml"), "gone.yaml: no such file"),
        (lambda: harness.expand("smoke", settings={"train.steps": float("nan")}), "no value of a matrix"),
        (lambda: harness.expand("smoke", settings={"train.steps": {1}}), "no value of a matrix"),
        (lambda: harness.compare("a.json", "b.json", slower_than=1), "a factor above 1"),
        (lambda: harness.report("latest", notify=["'"]), "is not a command"),
    ],
)
def test_wrong_input_is_an_input_error(call: object, said: str) -> None:
    assert callable(call)
    with pytest.raises(harness.InputError, match=said):
        call()


def test_a_defect_is_an_internal_error_that_names_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of the harness")

    monkeypatch.setattr("harness.campaign.plan_run.plan_run", broken)
    with pytest.raises(harness.InternalError, match="internal error: ZeroDivisionError: of the harness") as found:
        harness.expand("smoke")
    file = Path(str(found.value).rpartition(" ")[2])
    assert "in broken" in file.read_text()
    file.unlink()


def test_leaving_jobs_on_a_cluster_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.commands.run.run", lambda *_: RunResult(code=130))
    with pytest.raises(harness.InterruptedRun, match="the jobs keep running"):
        harness.run("smoke")
