"""Megatron-Bridge's own training loop, from its wheel, passes. Edits of it: tests/app/commands/test_selftest.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import EXIT_INPUT, EXIT_PASS
from harness.infra.inputs import yaml_file
from tests.app.conftest import harness, only_run, write_matrix

pytestmark = pytest.mark.train
LIMIT_S = 1800  # an environment is made and Transformer Engine is compiled when this machine has none


AXES = ("tp", "pp", "cp", "dp")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, dict[str, Any]]:
    """Cells by the axis that is 2."""
    folder = tmp_path_factory.mktemp("bridge")
    stacks = yaml_file.read(root / "matrices" / "trainer_bridge.yaml").values["stacks"]
    case = [{axis: 2 if axis == two else 1 for axis in AXES} for two in AXES]
    matrix = {"case": case, "stack": list(stacks), "packing": ["bridge_offline"], "trainer": ["bridge"]}
    whole = {"name": "wheel", "train": {"steps": 2, "global_batch": 16}, "documents": {"mode": "uncut"}}
    text = json.dumps(whole | {"launch": {"deadline_s": 300}, "stacks": stacks, "matrix": matrix})
    done = harness("run", write_matrix(folder, text), cwd=folder, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    cells = [cell for cell in report["cells"] if cell["role"] == "cell"]
    return {next(axis for axis in AXES if cell["axes"][axis] == 2): cell for cell in cells}


@pytest.mark.parametrize("axis", AXES)
def test_it_trains_as_one_rank_does(ran: dict[str, dict[str, Any]], axis: str) -> None:
    assert (ran[axis]["outcome"], ran[axis]["findings"]) == ("PASS", [])


def with_arguments(folder: Path, root: Path, arguments: dict[str, Any]) -> Any:
    """A run of one rank with these arguments."""
    stacks = yaml_file.read(root / "matrices" / "trainer_bridge.yaml").values["stacks"]
    matrix = {"stack": list(stacks), "packing": ["bridge_offline"], "trainer": ["bridge"]}
    whole = {"name": "fields", "train": {"steps": 2, "global_batch": 16}, "documents": {"mode": "uncut"}}
    whole |= {"launch": {"deadline_s": 300}, "stacks": stacks, "matrix": matrix, "args": arguments}
    return harness("run", write_matrix(folder, json.dumps(whole)), cwd=folder, timeout=LIMIT_S)


def test_a_misspelt_field_is_an_input_error_before_any_cell_starts(tmp_path: Path, root: Path) -> None:
    done = with_arguments(tmp_path, root, {"ddp.overlap_grad_reduc": True})
    assert done.returncode == EXIT_INPUT, done.stdout + done.stderr
    text = (
        "ddp.overlap_grad_reduc is not a field of this release's ConfigContainer; did you mean ddp.overlap_grad_reduce?"
    )
    assert text in done.stderr
    assert f"{tmp_path}/small.yaml:" in done.stderr
    assert not (tmp_path / "reports").exists()


def test_fields_reach_the_container(tmp_path: Path, root: Path) -> None:
    fields = {"granularity": "full", "method": "uniform", "num_layers": 1}
    done = with_arguments(tmp_path, root, {f"model.recompute_{name}": value for name, value in fields.items()})
    assert done.returncode == EXIT_PASS, done.stdout + done.stderr
    run = only_run(tmp_path / "reports")
    (file,) = run.glob("cells/*-trainer-*/attempt-1/ranks/rank-*.json")
    record = json.loads(file.read_text())
    assert len(record["recomputed"]) == len(record["layers"]) > 0


@pytest.mark.long
def test_the_shipped_matrix_passes(tmp_path: Path, root: Path) -> None:
    done = harness("run", root / "matrices" / "trainer_bridge.yaml", cwd=tmp_path, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    assert report["rejected"] == []
    assert sum(cell["role"] == "cell" for cell in report["cells"]) > 20
