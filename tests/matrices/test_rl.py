"""Rollouts packed and scored by Megatron-LM, NeMo-RL and verl: parts of the matrices of RL, and a reproducer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.inputs import yaml_file
from harness.inputs.matrix_file import read_matrix
from harness.launch.stacks.prepare import prepare
from tests.cli.conftest import harness, only_run, write_matrix
from tests.launch.stacks.test_checkout import git
from tests.megatron_clone import CLONE as MEGATRON
from tests.megatron_clone import needs_clone as needs_megatron
from tests.nemo_rl_clone import CLONE, needs_clone

pytestmark = pytest.mark.train
VERL = os.environ.get("HARNESS_VERL_REPO", "")
LIMIT_S = 1800  # an environment is made and Transformer Engine is compiled when this machine has none
LAYOUTS = ({}, {"tp": 2, "cp": 2}, {"pp": 2}, {"dp": 2})


def ran(folder: Path, root: Path, name: str, stacks: list[str], cells: list[dict[str, Any]]) -> dict[str, str]:
    """Outcomes of cells of a shipped matrix, by their id without its hash. `cells`: rows of its `case`."""
    values = yaml_file.read(root / "matrices" / f"{name}.yaml").values
    values |= {"stacks": {stack: values["stacks"][stack] for stack in stacks}, "matrix": {"case": cells}}
    values["xfail"] = [entry for entry in values["xfail"] if entry["pattern"].rpartition("-")[2] in stacks]
    matrix = write_matrix(folder, json.dumps(values).replace("../../NeMo-RL", CLONE))
    done = harness("run", matrix, cwd=folder, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    return {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in report["cells"] if cell["role"] == "cell"}


def test_verl_trains_packed_rollouts_as_one_rank_does_unpacked_ones(tmp_path: Path, root: Path) -> None:
    mean = {
        "stack": "verl091",
        "packing": "verl",
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "dp": 1,
        "calculate_per_token_loss": False,
    }
    counted = mean | {"cp": 2, "calculate_per_token_loss": True}
    found = ran(tmp_path, root, "rl", ["verl091"], [*(mean | layout for layout in LAYOUTS), counted])
    assert found.pop("tp1-pp1-cp2-verl-verl091") == "XFAIL"
    assert (len(found), set(found.values())) == (len(LAYOUTS), {"PASS"})


def test_labels_of_an_older_verl_are_read_beyond_the_end_of_rollouts(tmp_path: Path, root: Path) -> None:
    cell = {"packing": "verl", "tp": 1, "pp": 1, "cp": 2, "fuse_loss": False, "calculate_per_token_loss": False}
    stacks = ["verl070", "verl091"]
    found = ran(tmp_path, root, "rl_bugs", stacks, [cell | {"stack": name} for name in stacks])
    assert found == {"tp1-pp1-cp2-verl-meanloss-verl070": "XFAIL", "tp1-pp1-cp2-verl-meanloss-verl091": "PASS"}


def test_ranks_of_verl_return_too_few_tokens_under_cp(root: Path) -> None:
    stack = read_matrix(root / "matrices" / "rl.yaml").stacks["verl091"]
    python = prepare([stack], lambda text: None)["verl091"].python
    script = root / "docs" / "reproducers" / "verl_token_counts_under_cp.py"
    done = subprocess.run([python, "-W", "ignore", script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "tokens that the ranks return: 14, expected 16" in done.stdout


@pytest.mark.skipif(not VERL, reason="HARNESS_VERL_REPO does not name a clone of verl")
def test_a_checkout_of_verl_is_tested_as_its_wheel_is(tmp_path: Path) -> None:
    """Its gate, of any commit from 0.7 on: bugs of that commit may fail cells, but none is undecided."""
    clone = tmp_path / "verl"
    git(tmp_path, "clone", "--quiet", "--shared", VERL, str(clone))
    done = harness("run", "gate", "--run-dir", tmp_path / "reports", cwd=clone, timeout=LIMIT_S)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    outcomes = {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in report["cells"]}
    assert len(outcomes) == 6
    assert {"tp1-pp1-cp1-verl-meanloss-fork", "tp1-pp4-cp1-verl-meanloss-fork"} <= {
        name for name, outcome in outcomes.items() if outcome == "PASS"
    }
    (checkout,) = report["provenance"]["stacks"]["fork"]["checkouts"]
    assert (checkout["project"], checkout["commit"]) == ("verl", git(clone, "rev-parse", "HEAD"))


@needs_megatron
def test_megatron_rl_trains_packed_rollouts_as_one_rank_does_and_its_old_offsets_are_wrong(
    tmp_path: Path, root: Path
) -> None:
    text = (root / "matrices" / "rl_megatron.yaml").read_text().replace("../../Megatron-LM", MEGATRON)
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "23 PASS, 5 XFAIL" in done.stdout


@needs_megatron
def test_models_in_fp32_have_no_log_probabilities_in_megatron_rl(tmp_path: Path, root: Path) -> None:
    text = (root / "matrices" / "rl_megatron.yaml").read_text().replace("../../Megatron-LM", MEGATRON)
    stack = read_matrix(write_matrix(tmp_path, text)).stacks["main"]
    ready = prepare([stack], lambda text: None)["main"]
    script = root / "docs" / "reproducers" / "rl_log_probs_in_fp32.py"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(ready.paths)}
    done = subprocess.run([ready.python, "-W", "ignore", script], env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "GPTModel.forward() got an unexpected keyword argument 'fp32_output'" in done.stdout


@needs_clone
def test_nemo_rl_trains_packed_rollouts_as_one_rank_does_unpacked_ones(tmp_path: Path, root: Path) -> None:
    plain = {"stack": "nemo_rl", "packing": "nemo_rl", "tp": 1, "pp": 1, "cp": 1, "dp": 1, "fuse_loss": False}
    fused = plain | {"tp": 2, "cp": 2, "fuse_loss": True}
    found = ran(tmp_path, root, "rl", ["nemo_rl"], [*(plain | layout for layout in LAYOUTS), fused])
    assert (len(found), set(found.values())) == (len(LAYOUTS) + 1, {"PASS"})


@needs_clone
@pytest.mark.long
@pytest.mark.parametrize("name", ["rl", "rl_bugs"])
def test_the_shipped_matrices_pass(tmp_path: Path, root: Path, name: str) -> None:
    text = (root / "matrices" / f"{name}.yaml").read_text().replace("../../NeMo-RL", CLONE)
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
