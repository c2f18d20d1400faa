"""Document lengths against Megatron-LM's mock SFT dataset. HARNESS_MEGATRON_LM_REPO names a clone with branch dev."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.packing.documents import DocumentsConfig, documents_of_step
from harness.inputs.matrix_file import read_lengths
from harness.launch.stacks.build import find_uv
from tests.megatron_clone import CLONE, needs_clone
from tests.processes import HUNG_S

COMMIT = "d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1"  # dev of 2026-08; main and the releases have no such class
pytestmark = [pytest.mark.train, needs_clone]
ASK = """\
import json, sys
sys.path.append(sys.argv[1])
from megatron.training.datasets.sft_dataset import MockSFTLowLevelDataset
found = []
for seed, config in json.loads(sys.argv[2]):
    MockSFTLowLevelDataset.seed = seed
    found.append([int(length) for length in MockSFTLowLevelDataset(**config).sequence_lengths[:4000]])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A work tree of the commit that has the class."""
    folder = tmp_path_factory.mktemp("dev") / "Megatron-LM"
    git = ["git", "-C", CLONE, "worktree"]
    subprocess.run([*git, "add", "--detach", str(folder), COMMIT], check=True, capture_output=True)
    yield folder
    subprocess.run([*git, "remove", "--force", str(folder)], check=True, capture_output=True)


def upstream(checkout: Path, packages: Path, *requested: tuple[int, dict[str, object]]) -> list[list[int]]:
    """The first 4,000 lengths of each (seed, mock_config). `packages` is searched last."""
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", ASK, str(packages), json.dumps(requested)]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=HUNG_S)
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_drawn_lengths_are_upstreams_for_the_same_seed(checkout: Path, tmp_path: Path) -> None:
    shapes = [(0, 100, 4096, 2048, 1.1), (0, 1, 64, 24, 0.5), (1234, 8, 100_000, 700, 2.0), (2**32 - 1, 5, 5, 3, 1.0)]
    names = ("min_seq_len", "max_seq_len", "mean_seq_len", "lognormal_sigma")
    requested = [
        (seed, {"mode": "distribution", "type": "lognormal", **dict(zip(names, values))}) for seed, *values in shapes
    ]
    for (seed, *values), lengths in zip(shapes, upstream(checkout, tmp_path, *requested)):
        config = DocumentsConfig(mode="distribution", **dict(zip(names, values)))
        assert lengths_of(config, seed) == lengths


def test_lengths_of_a_file_are_upstreams(checkout: Path, tmp_path: Path) -> None:
    """Upstream reads the file with pandas, which takes its first row as the header."""
    packages, file = tmp_path / "packages", tmp_path / "lengths.csv"
    install = [find_uv(), "pip", "install", "--python", sys.executable, "--target", str(packages), "pandas"]
    subprocess.run(install, check=True, capture_output=True)
    file.write_text("length\n12\n7\n300\n5000\n")
    (lengths,) = upstream(checkout, packages, (0, {"mode": "file", "path": str(file)}))
    config = DocumentsConfig(mode="file", lengths=read_lengths(file))
    assert lengths_of(config, 0)[: len(lengths)] == lengths


def lengths_of(config: DocumentsConfig, seed: int) -> list[int]:
    steps = [documents_of_step(config, seed=seed, step=step, count=400, seq_length=2**20) for step in range(10)]
    return [document.original_length for step in steps for document in step]
