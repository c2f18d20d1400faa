"""Misspelt arguments end the run before any cell starts, and a control has its cells' arguments of the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.outcomes import EXIT_INPUT, EXIT_PASS
from harness.core.run.records import RankRecord
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.core.serialization import from_jsonable, loads
from tests.app.conftest import MATRIX, harness, only_run, write_matrix

pytestmark = pytest.mark.train
PACKING = "packing: [reference, sft]"


def test_a_misspelt_argument_is_an_input_error_before_anything_is_written(tmp_path: Path) -> None:
    text = MATRIX.replace(PACKING, "packing: sft\n  trainer: megatron\n  args.clip-grud: [null, 0.5]")
    done = harness("run", write_matrix(tmp_path, text), "--run-dir", tmp_path / "runs", cwd=tmp_path)
    assert done.returncode == EXIT_INPUT, done.stderr
    assert "--clip-grud is not an argument of this release; did you mean --clip-grad?" in done.stderr
    assert f"{tmp_path}/small.yaml:" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_clipping_reaches_the_harness_own_optimizer_and_the_control(tmp_path: Path) -> None:
    """With this epsilon, Adam's first update depends on the size of the gradients."""
    text = MATRIX.replace(PACKING, "packing: [sft]\n  args.clip-grad: [null, 0.05]") + "args: {adam-eps: 1}\n"
    done = harness("run", write_matrix(tmp_path, text), "--run-dir", tmp_path / "runs", cwd=tmp_path)
    assert done.returncode == EXIT_PASS, done.stdout + done.stderr
    run = RunDir(only_run(tmp_path / "runs"))
    plan = from_jsonable(RunPlan, loads(run.plan.read_text()))
    controls = [cell for cell in plan.expansion.cells if cell.control is None]
    assert [cell.config.args.flags() for cell in controls] == [["--adam-eps=1"], ["--adam-eps=1", "--clip-grad=0.05"]]
    free, clipped = (from_jsonable(RankRecord, loads(run.attempt(cell.id).record(0).read_text())) for cell in controls)
    assert free.steps[0].loss_sum == clipped.steps[0].loss_sum  # before the first update
    assert free.steps[1].loss_sum != clipped.steps[1].loss_sum
