"""A cell over two nodes saves a checkpoint, and new processes on both nodes continue from it in another layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.inputs import yaml_file
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]
CELL = "tp2-pp2-cp1-bridge_offline-bridge062-bridge-trainer-resume-tp1-pp4"


@pytest.mark.long  # short: resumed cells in test_trainer_bridge.py, cells on two nodes in test_launch.py
def test_a_cell_on_two_nodes_continues_in_another_layout(lab: SlurmLab, tmp_path: Path, root: Path) -> None:
    stacks = yaml_file.read(root / "matrices" / "trainer_bridge.yaml").values["stacks"]
    matrix = {
        "name": "resumed",
        "train": {"steps": 3, "global_batch": 16},
        "launch": {"nodes_per_cell": 2, "deadline_s": 400},
        "stacks": stacks,
        "matrix": {
            "tp": [2],
            "pp": [2],
            "packing": ["bridge_offline"],
            "trainer": ["bridge"],
            "stack": list(stacks),
            "resume": ["tp1-pp4"],
        },
    }
    cluster = Cluster(lab, tmp_path, json.dumps(matrix))
    code, output = cluster.run("run", str(cluster.matrix), "--cluster", "slurm-lab")
    assert code == 0, output
    cell = cluster.cells()[CELL]
    assert cell.outcome is Outcome.PASS
    assert len(set(cluster.hosts(CELL))) == 2
    later = cluster.attempt(CELL) / "resumed"
    records = [json.loads(path.read_text()) for path in sorted(later.glob("ranks/rank-*.json"))]
    assert [record["place"]["pp"] for record in records] == [0, 1, 2, 3]
    assert len({record["environment"]["host"] for record in records}) == 2
    assert [[step["step"] for step in record["steps"]] for record in records] == [[1, 2]] * 4
