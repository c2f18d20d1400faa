"""Real stacks: an environment with a released megatron-core, and other code that is imported instead."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.run.report import Report, ReportCell
from harness.reporting.render_json import read_report
from tests.cli.conftest import harness, only_run, write_matrix

pytestmark = pytest.mark.train
OURS = {"pydantic", "rich", "submitit", "ruamel.yaml", "matplotlib", "pytest"}
# The image is rejected here and the missing release cannot be installed; the other stacks are judged nevertheless.
MATRIX = """
name: stacks
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 1, global_batch: 4, seq_length: 32}
matrix:
  tp: [1, 2]
  packing: reference
  stack: [clean, polluted, missing, image]
constraints: [tp == 2 or stack == "clean"]
stacks:
  clean: {packages: [megatron-core==0.16.1]}
  polluted: {packages: [megatron-core==0.16.1], env: {PYTHONPATH: POLLUTION}}
  missing: {packages: [megatron-core==0.0.1]}
  image: {container: registry.example.org/image}
"""


@dataclass(frozen=True)
class Ran:
    done: subprocess.CompletedProcess[str]
    report: Report
    kept: Path

    def cell(self, name: str) -> ReportCell:
        (cell,) = [cell for cell in self.report.cells if cell.id.rpartition("-")[0] == name]
        return cell


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run over the four stacks; `pollution` holds the megatron of the same environment at another path."""
    folder = tmp_path_factory.mktemp("stacks")
    (pollution := folder / "pollution").mkdir()
    kept = folder / "kept"
    matrix = write_matrix(folder, MATRIX.replace("POLLUTION", str(pollution)))
    env = {"HARNESS_STACKS": str(kept)}
    plan = harness("plan", matrix, cwd=folder, env=env)
    assert "clean: environment of megatron-core==0.16.1" in plan.stdout, plan.stdout + plan.stderr
    assert "to build" in plan.stdout
    place = plan.stdout.partition("to build: ")[2].split()[0]
    (pollution / "megatron").symlink_to(f"{place}/lib/python3.12/site-packages/megatron")
    done = harness("run", matrix, cwd=folder, env=env)
    run = only_run(folder / "reports")
    assert (run / "report.json").exists(), done.stdout + done.stderr
    return Ran(done, read_report((run / "report.json").read_text()), kept)


def test_cells_pass_in_an_environment_that_holds_nothing_of_ours(ran: Ran) -> None:
    for name in ("tp1-pp1-cp1-unpacked-clean", "tp1-pp1-cp1-reference-clean", "tp2-pp1-cp1-reference-clean"):
        assert ran.cell(name).outcome is Outcome.PASS, ran.cell(name).reason
    packages = {item.name.lower() for item in ran.report.provenance.stacks["clean"].packages}
    assert "megatron-core" in packages
    assert not packages & OURS


def test_every_cell_is_compared_with_the_reference_of_its_own_stack(ran: Ran) -> None:
    for cell in ran.report.cells:
        assert cell.control is None or cell.control.startswith(f"tp1-pp1-cp1-unpacked-{cell.axes['stack']}-")


def test_code_from_elsewhere_on_the_path_is_an_error_that_names_both_paths(ran: Ran) -> None:
    cell = ran.cell("tp2-pp1-cp1-reference-polluted")
    assert cell.outcome is Outcome.ERROR
    assert "wrong code under test: megatron.core 0.16.1 came from" in cell.reason
    assert "/pollution/megatron/core/__init__.py" in cell.reason
    assert f"{ran.kept}/environments/py3.1" in cell.reason
    assert set(cell.lanes.values()) == {LaneVerdict.SKIP}


def test_a_stack_that_cannot_be_made_is_an_error_with_the_end_of_the_log(ran: Ran) -> None:
    cell = ran.cell("tp2-pp1-cp1-reference-missing")
    assert cell.outcome is Outcome.ERROR
    assert "stack missing cannot be used: uv pip install ended with exit code 1" in cell.reason
    assert "megatron-core==0.0.1" in cell.reason


def test_a_container_is_rejected_on_this_machine(ran: Ran) -> None:
    (rejected,) = ran.report.rejected
    assert rejected.rule == "stack.container"


def test_the_run_is_undecided_and_says_so(ran: Ran) -> None:
    assert ran.done.returncode == 3
    assert ran.report.verdict == "error"


def test_a_ref_that_is_not_there_is_bad_input_with_its_line(tmp_path: Path) -> None:
    text = "name: t\nmatrix: {packing: reference, stack: s}\nstacks:\n  s: {checkout: ., ref: gone, package: skyrl}\n"
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path, env={"HARNESS_STACKS": str(tmp_path / "kept")})
    assert done.returncode == 2
    assert f"small.yaml:4: stacks.s: {tmp_path} has no commit, tag or branch 'gone'" in " ".join(done.stderr.split())
    assert not (tmp_path / "reports").exists()


def test_a_path_file_in_the_environment_does_not_go_unnoticed(ran: Ran, tmp_path: Path) -> None:
    """Like the one of `pip install -e` of another checkout; here it comes before the environment's packages."""
    (site,) = (ran.kept / "environments").glob("*/lib/python3.*/site-packages")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "megatron").symlink_to(site / "megatron")
    (site / "other.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'other')!r})\n")
    only = "tp1-pp1-cp1-reference-clean"
    matrix = write_matrix(tmp_path, MATRIX.replace("POLLUTION", "/nowhere"))
    done = harness("run", matrix, "--only", only, cwd=tmp_path, env={"HARNESS_STACKS": str(ran.kept)})
    (site / "other.pth").unlink()
    assert done.returncode == 3, done.stdout + done.stderr
    report = read_report((only_run(tmp_path / "reports") / "report.json").read_text())
    assert {cell.outcome for cell in report.cells} == {Outcome.ERROR}
    assert f"came from {tmp_path}/other/megatron/core/__init__.py" in report.cells[0].reason
