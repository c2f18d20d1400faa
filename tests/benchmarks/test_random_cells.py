"""Random clean cells: every axis and key is drawn or left out for a reason, a seed repeats them, and a few run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.core.cell.axes import axes, dotted
from harness.core.setting import keys_of
from harness.core.stack import DEFAULT
from harness.matrix.stacks.recipes import RECIPES
from tests.scripts import load_script

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "random_cells.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPT)


def test_every_axis_and_key_is_drawn_or_left_out_for_a_reason(script: ModuleType) -> None:
    names = {*axes(), *dotted()}
    assert set(script.draws([DEFAULT])) | set(script.LEFT_OUT) == names
    assert not set(script.draws([DEFAULT])) & set(script.LEFT_OUT) - {"stack"}
    parts = {f"{part}.{key}" for part, kind in script.PARTS.items() for key in keys_of(kind)}
    assert set(script.DRAWN) <= names | parts
    for part, kind in script.PARTS.items():
        for name, key in keys_of(kind).items():
            assert script.values_of(key, f"{part}.{name}")


def test_a_stack_gets_only_what_it_has(script: ModuleType) -> None:
    assert {*script.PACKINGS, *script.STACK_TRAINERS} <= {*RECIPES}
    for stack, packings in ((DEFAULT, script.OWN), ("bridge-0.6.2", script.PACKINGS["bridge-0.6.2"])):
        found = [row["packing"] for row in script.cells_of(1, 12, [stack])]
        assert set(found) <= set(packings)
        assert len(set(found)) > 2


def test_a_seed_gives_the_same_valid_cells_and_another_one_others(script: ModuleType) -> None:
    first, again, other = (list(script.cells_of(seed, 3, [DEFAULT])) for seed in (1, 1, 2))
    assert first == again != other
    found = script.planned(first)
    assert found is not None and len([cell for cell in found.cells if cell.role == "cell"]) == 3


@pytest.mark.train
def test_a_cell_of_a_seed_runs_and_passes(tmp_path: Path) -> None:
    words = ["--seed", "1", "--cells", "4", "--only", "1", "--folder", str(tmp_path)]
    command = [sys.executable, str(SCRIPT), *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(line.split()[:2] == ["1", "PASS"] for line in done.stdout.splitlines()), done.stdout
