"""What stopped users in their first hour, each repeated by its command.

Obstacles with tests of their own: tracebacks in the logs of ranks (tests/runs/test_log_errors.py), Ctrl-C
(tests/cli/test_interruption.py), the live view (tests/reporting/test_console.py), links of a report
(tests/reporting/html/test_page.py), the wheel without torch (tests/test_packaging.py).
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from harness.cli.cli import main
from harness.core.run.run_dir import RunDir
from tests.cli.runs import simulated_run

SMALL = "name: small\nmatrix: {packing: reference, tp: [1, 2]}\n"
RUN = "smoke-20260101T000000Z-0001"
MAPPING = "did you mean"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A finished run under reports/, and small.yaml, in the current folder."""
    monkeypatch.delenv("HARNESS_HISTORY", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)
    made = simulated_run(tmp_path / "reports", RUN)
    assert main(["report", RUN]) == 0
    return made


def said(capsys: pytest.CaptureFixture[str], command: str, code: int = 0) -> str:
    capsys.readouterr()
    try:
        ended = main(shlex.split(command))
    except SystemExit as error:  # of argparse
        ended = int(error.code or 0)
    out = capsys.readouterr()
    assert ended == code, out.out + out.err
    return " ".join((out.out + out.err).split())


def test_an_option_may_come_before_the_cell(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = run.root.glob("cells/*sft*")
    log = cell / "attempt-1" / "log" / "rank-00001.log"
    log.parent.mkdir(parents=True)
    log.write_text("what rank 1 said\n")
    assert "what rank 1 said" in said(capsys, "logs latest --rank 1 *sft*")
    assert said(capsys, "logs latest --rnak 1 *sft*", 2).startswith("usage: harness logs ")


def test_a_plan_says_that_a_stack_is_still_to_be_made(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("other.yaml").write_text(SMALL.replace("tp:", "stack: core-0.14.0, tp:"))
    monkeypatch.setenv("HARNESS_STACKS", str(run.root / "empty"))
    assert "and the time to make the stacks that are not made yet" in said(capsys, "plan other.yaml")


def test_a_stack_of_many_packages_has_a_name(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    axes = "{packing: bridge_in_batch, micro_batch_size: 2, stack: bridge-0.6.2}"
    Path("bridge.yaml").write_text(f"name: b\nmatrix: {axes}\n")
    assert said(capsys, "verify bridge.yaml") == "bridge.yaml: ok, 2 cells, 0 rejected"


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("stauts latest", "status"),
        ("run small.yaml --onyl x", "--only"),
        ("run smal.yaml", "small.yaml"),
        ("plan small.yaml --cluster slurm-lba", "slurm-lab"),
        ("history --outcome FIAL", "FAIL"),
        ("status smoke-20260101T000000Z-001", RUN),
        ("explain params_presnt", "params_present"),
        ("run small.yaml --fault attention-ignores-document", "attention-ignores-documents"),
        ("run small.yaml --set matrix.packing=refrence", "reference"),
        ("run small.yaml --set constraints=['tpp<2']", "tp"),
    ],
)
def test_a_typo_gets_a_suggestion(run: RunDir, capsys: pytest.CaptureFixture[str], command: str, meant: str) -> None:
    text = said(capsys, command, 2)
    assert "did you mean" in text
    assert meant in text.partition("did you mean")[2]


@pytest.mark.parametrize("name", ["smoke-2026", f"reports/{RUN}/report.html", f"reports/{RUN}", "latest"])
def test_a_run_may_be_named_by_its_beginning_or_a_file(
    run: RunDir, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert "3 of 3 cells have ended" in said(capsys, f"status {name}")


@pytest.mark.parametrize(
    "command",
    ["plan smoke", "history", "history cells", "list", "list stacks", "explain params_present", "status latest"],
)
def test_no_line_is_longer_than_the_terminal(
    run: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    capsys.readouterr()
    assert main(shlex.split(command)) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_a_page_of_one_run_counts_in_the_singular(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "history html --days 99999")
    page = Path("reports/history.html").read_text()
    assert "1 run of 1 matrix" in page
    assert "1 runs" not in page


def test_a_run_judged_again_has_the_same_wall_time(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(run.report("report.json").read_text())["timing"]
    said(capsys, "report latest")
    assert json.loads(run.report("report.json").read_text())["timing"] == before


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("name: a\nmatrix:\n  packing: [reference\n  tp: 1\n", ":3: not valid YAML"),
        ("name: a\nmatrix: {packing: reference}\ndocuments: adversarial\n", "e.g. documents: {mode: adversarial}"),
        ("name: a\nmatrix:\n  packing: sft\n  case: [{tp: 1, cp: 2}, {tp: 2}]\n", "this one lacks cp (add cp to it)"),
        (
            "name: a\nmatrix: {packing: sft, tp: 3, pp: 3}\n",
            "layout.layers-by-pp (1), layout.heads-by-tp (1)",
        ),
    ],
)
def test_a_mistake_in_a_matrix_is_explained(
    run: RunDir, capsys: pytest.CaptureFixture[str], text: str, answer: str
) -> None:
    Path("wrong.yaml").write_text(text)
    assert answer in said(capsys, "verify wrong.yaml", 2)


def test_document_lengths_are_an_axis(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    lists = "documents: {lists: {short: [5, 7, 9, 30, 64, 12, 3, 1], even: [8, 8, 8, 8, 8, 8, 8, 8]}}\n"
    Path("lengths.yaml").write_text(SMALL.replace("tp: [1, 2]", "documents: [short, even]") + lists)
    plan = said(capsys, "plan lengths.yaml")
    assert "4 cells to run" in plan
    assert "reference-short-" in plan
