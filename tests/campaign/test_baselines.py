"""Real nightly runs: a step is compared with those of earlier green runs, and a slower kernel is found.

On a CPU processor time is compared, which other processes disturb by about ten per cent; the fault makes a step eight
to ten times as long. With 12 nights that is beyond chance even if they spread by 15 % (MAD).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.outcomes import Finding, Lane, LaneVerdict, Outcome, Severity
from harness.core.run.report import ReportCell
from harness.reporting.render_json import read_report
from tests.cli.conftest import harness, write_matrix
from tests.cli.nights import CLEAN
from tests.processes import HUNG_S

pytestmark = pytest.mark.train
# One rank; rows so long that attention is most of a step. The bound leaves room for other work on the machine.
MATRIX = """\
name: nights
model: {layers: 1, hidden: 32, heads: 2, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 9, global_batch: 1, seq_length: 1024}
documents: {mode: file, lengths: [1023]}
matrix: {packing: unpacked}
checks: {canaries: none, throughput: {history: {slower: 2}}}
"""
SLOW = "attention-by-a-slower-kernel"
GREEN = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Twelve green nights, one with a slower kernel, and a green one by the command line."""
    folder = tmp_path_factory.mktemp("nights")
    matrix = write_matrix(folder, MATRIX)
    faults = [CLEAN] * GREEN + [SLOW]
    command = [sys.executable, "-m", "tests.cli.nights", matrix, *faults]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=HUNG_S)
    codes = [line for line in done.stdout.splitlines() if line.startswith(tuple(faults))]
    assert codes == [f"{CLEAN}: exit code 0"] * GREEN + [f"{SLOW}: exit code 1"], done.stdout + done.stderr
    done = harness("run", matrix, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def nights(folder: Path) -> dict[str, ReportCell]:
    """Run id -> the cell, in the order of the nights."""
    files = sorted(folder.glob("reports/*/report.json"), key=lambda path: path.stat().st_mtime)
    found = {file.parent.name: read_report(file.read_text()).cells for file in files}
    return {run: cell for run, (cell,) in found.items()}


def of_history(cell: ReportCell) -> list[Finding]:
    return [finding for finding in cell.findings if finding.check == "slower_than_history"]


def test_a_slower_kernel_fails_against_the_green_runs_before_it(folder: Path) -> None:
    runs = list(nights(folder))
    cell = nights(folder)[runs[GREEN]]
    assert cell.outcome is Outcome.FAIL
    assert (cell.lanes[Lane.METADATA], cell.lanes[Lane.NUMERICS]) == (LaneVerdict.PASS, LaneVerdict.PASS)
    (finding,) = cell.findings
    assert (finding.lane, finding.check, finding.where) == (
        Lane.THROUGHPUT,
        "slower_than_history",
        {"leg": "training"},
    )
    assert isinstance(finding.measured, float)
    assert finding.measured > 3
    assert finding.bound == 2
    assert f"{finding.measured:.3g} times the median of " in finding.message
    origin = ", ".join(reversed(runs[GREEN - 3 : GREEN]))  # the newest first
    assert f"longer than in each of {GREEN} green runs from " in finding.message
    assert f"({origin} and {GREEN - 3} more)" in finding.message


def test_the_first_nights_say_that_there_is_no_baseline_and_the_later_compare(folder: Path) -> None:
    cells = list(nights(folder).values())[:GREEN]
    told = [[(item.severity, item.message) for item in of_history(cell)] for cell in cells]
    few = [[(Severity.WARNING, f"no baseline yet ({count} of 5 green runs on this hardware)")] for count in range(5)]
    assert told == few + [[]] * (GREEN - 5)
    ratios = [[(ratio.verdict, ratio.rounds) for ratio in cell.throughput.ratios] for cell in cells if cell.throughput]
    assert [one for one in ratios if one] == [[("no difference", count)] for count in range(5, GREEN)]


def test_the_night_after_it_was_repaired_passes_and_does_not_count_the_slow_one(folder: Path) -> None:
    runs = nights(folder)
    *_, slow, last = runs
    assert (runs[last].outcome, runs[last].lanes[Lane.THROUGHPUT]) == (Outcome.PASS, LaneVerdict.PASS)
    assert of_history(runs[last]) == []
    kept = (folder / "reports" / last / "baseline.json").read_text()
    assert [run in kept for run in runs] == [True] * GREEN + [False, False]
    (folder / "reports" / "history.sqlite").rename(folder / "elsewhere.sqlite")  # the run directory has the baseline
    again = harness("report", slow, "--no-history", cwd=folder)
    (folder / "elsewhere.sqlite").rename(folder / "reports" / "history.sqlite")
    assert again.returncode == 1
    assert f"longer than in each of {GREEN} green runs" in again.stdout
