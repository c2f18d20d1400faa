"""Megatron-Bridge's own training loop, from its wheel, passes. Edits of it: tests/cli/commands/test_selftest.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcomes import EXIT_INPUT, EXIT_PASS
from harness.inputs import yaml_file
from harness.inputs.matrix_file import read_matrix
from harness.launch.stacks.prepare import prepare
from tests.cli.conftest import harness, only_run, write_matrix

pytestmark = pytest.mark.train
LIMIT_S = 1800  # an environment is made and Transformer Engine is compiled when this machine has none


PLAIN = {"tp": 1, "pp": 1, "cp": 1, "dp": 1, "packing": "bridge_offline", "micro_batch_size": 1, "model.moe": None}
PLAIN |= {"distributed_optimizer": "off", "train.eval_interval": 0, "resume": None}
# The names of cells and what they change.
CASES: dict[str, dict[str, Any]] = {
    "tp2-pp1-cp1-bridge_offline-bridge062-bridge-trainer": {"tp": 2},
    "tp1-pp2-cp1-bridge_offline-bridge062-bridge-trainer": {"pp": 2},
    "tp1-pp1-cp2-bridge_offline-bridge062-bridge-trainer": {"cp": 2},
    "tp1-pp1-cp1-dp2-bridge_offline-bridge062-bridge-trainer": {"dp": 2},
    "tp2-pp1-cp1-bridge_offline-moe4x2-aux_loss-bridge062-bridge-trainer": {
        "tp": 2,
        "model.moe": {"aux_loss": "aux_loss"},
    },
    "tp1-pp2-cp1-bridge_long-mbs2-bridge062-bridge-trainer": {
        "pp": 2,
        "packing": "bridge_long",
        "micro_batch_size": 2,
    },
    "tp1-pp1-cp1-dp2-bridge_long-eval_interval1-bridge062-distopt-on-bridge-trainer-resume-same": {
        "dp": 2,
        "packing": "bridge_long",
        "distributed_optimizer": "on",
        "train.eval_interval": 1,
        "resume": "same",
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """The directory of a run of the cases."""
    folder = tmp_path_factory.mktemp("bridge")
    stacks = yaml_file.read(root / "matrices" / "trainer_bridge.yaml").values["stacks"]
    case = [PLAIN | changed for changed in CASES.values()]
    matrix = {"case": case, "stack": list(stacks), "trainer": ["bridge"]}
    whole = {"name": "wheel", "train": {"steps": 2, "global_batch": 16}, "documents": {"mode": "uncut"}}
    text = json.dumps(whole | {"launch": {"deadline_s": 300}, "stacks": stacks, "matrix": matrix})
    done = harness("run", write_matrix(folder, text), cwd=folder, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(folder / "reports")


@pytest.mark.parametrize("name", CASES)
def test_it_trains_as_one_rank_does(run: Path, name: str) -> None:
    cells = json.loads((run / "report.json").read_text())["cells"]
    (cell,) = [cell for cell in cells if cell["id"].rpartition("-")[0] == name]
    assert (cell["outcome"], cell["findings"]) == ("PASS", [])


def test_a_part_that_continues_is_entered_by_finetune(run: Path) -> None:
    (attempt,) = run.glob("cells/*resume-same-*/attempt-1")
    entered = [
        json.loads((part / "ranks" / "rank-00000.json").read_text())["entry_point"].rpartition(".")[2]
        for part in (attempt, attempt / "resumed")
    ]
    assert entered == ["pretrain", "finetune"]


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


@pytest.mark.long
def test_fields_reach_the_container(tmp_path: Path, root: Path) -> None:
    fields = {"granularity": "full", "method": "uniform", "num_layers": 1}
    done = with_arguments(tmp_path, root, {f"model.recompute_{name}": value for name, value in fields.items()})
    assert done.returncode == EXIT_PASS, done.stdout + done.stderr
    run = only_run(tmp_path / "reports")
    (file,) = run.glob("cells/*-trainer-*/attempt-1/ranks/rank-*.json")
    record = json.loads(file.read_text())
    assert len(record["recomputed"]) == len(record["layers"]) > 0


def test_whole_tensors_of_a_sharded_optimizer_are_saved_from_wrong_places(root: Path) -> None:
    done = reproduced(sys.executable, root / "docs" / "reproducers" / "fully_reshardable_buckets.py")
    assert "parameters whose mean is 1 and 2 are saved with mean 1 and 0" in done


def reproduced(python: str, script: Path) -> str:
    """What a reproducer prints of a fault that this release has."""
    done = subprocess.run([python, "-W", "ignore", str(script)], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("prediction_without_loss_mask", "the model gets attention_mask, input_ids, labels, position_ids"),
        ("offline_packing_ends_with_eos", "cu_seqlens_q [[0, 2]], expected [[0, 3]]"),
    ],
)
def test_a_reproducer_shows_the_fault(root: Path, name: str, shown: str) -> None:
    stacks = read_matrix(root / "matrices" / "trainer_bridge.yaml").stacks
    ready = prepare(stacks.values(), lambda text: None)["bridge062"]
    assert shown in reproduced(ready.python, root / "docs" / "reproducers" / f"{name}.py")


@pytest.mark.long  # that it fails on main: the strict xfail of matrices/gate_bridge.yaml
def test_the_padding_of_documents_does_not_count_in_this_release(root: Path) -> None:
    stacks = read_matrix(root / "matrices" / "trainer_bridge.yaml").stacks
    ready = prepare(stacks.values(), lambda text: None)["bridge062"]
    script = root / "docs" / "reproducers" / "offline_packing_counts_padding.py"
    done = subprocess.run([ready.python, "-W", "ignore", script], capture_output=True, text=True)
    assert "loss mask [[1, 1, 1, 0]]" in done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_the_shipped_matrix_passes(tmp_path: Path, root: Path) -> None:
    done = harness("run", root / "matrices" / "trainer_bridge.yaml", cwd=tmp_path, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    assert report["rejected"] == []
    assert sum(cell["role"] == "cell" for cell in report["cells"]) > 60
