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


def test_a_seed_gives_the_same_valid_cells_and_another_one_others(script: ModuleType) -> None:
    first, again, other = (list(script.cells_of(seed, 3, [DEFAULT])) for seed in (1, 1, 2))
    assert first == again != other
    found = script.planned(first)
    assert found is not None and len([cell for cell in found.cells if cell.role == "cell"]) == 3


@pytest.mark.train
def test_a_few_cells_run_and_none_fails(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--seed", "1", "--cells", "3", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(line.split()[:1] in (["0"], ["1"], ["2"]) for line in done.stdout.splitlines()) == 3
