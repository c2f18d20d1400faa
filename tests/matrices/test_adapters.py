"""matrices/adapters.yaml: adapters of Megatron-Bridge over layouts equal those of one rank, and known faults fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.filesystem import FileSystemReader

from harness.inputs.matrix_file import read_matrix
from harness.launch.stacks.prepare import prepare
from harness.matrix.expansion.expand import expand
from tests.cli.conftest import harness, only_run
from tests.matrices.test_models import named

pytestmark = pytest.mark.train
LIMIT_S = 1800  # an environment is made and Transformer Engine is compiled when this machine has none
RESUMED = "tp1-pp1-cp1-bridge_offline-bridge062-bridge-trainer-resume-same"
WHOLE = "tp2-pp1-cp1-etp1-reference-moe4x2-bridge062"
# A few cells of the newest release; their controls come with them.
COVERING = (
    "tp2-pp1-cp2-bridge_offline-uncut-bridge062",
    "tp1-pp2-cp1-dp2-reference-bridge062-distopt-overlap",
    "tp1-pp1-cp1-reference-dora4-bridge062",
    "tp2-pp1-cp1-reference-canonical_lora4-bridge062",
    WHOLE,
    RESUMED,
)
SPLIT, DORA = "tp2-pp1-cp1-reference-moe4x2-bridge062", "tp2-pp1-cp1-reference-dora4-bridge062"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """The directory of a run of these cells."""
    folder = tmp_path_factory.mktemp("adapters")
    only = [option for name in (*COVERING, SPLIT, DORA) for option in ("--only", name)]
    done = harness("run", root / "matrices" / "adapters.yaml", *only, cwd=folder, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return only_run(folder / "reports")


@pytest.fixture(scope="module")
def report(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "report.json").read_text())
    return found


def test_adapters_equal_those_of_one_rank_in_every_layout(report: dict[str, Any]) -> None:
    assert {name: named(report, name)["outcome"] for name in COVERING} == dict.fromkeys(COVERING, "PASS")


def test_adapters_of_experts_that_are_split_count_twice_and_of_whole_ones_do_not(report: dict[str, Any]) -> None:
    cell = named(report, SPLIT)
    first = cell["findings"][0]
    assert (cell["outcome"], first["check"], first["where"]["layer"]) == ("XFAIL", "activations", 1)
    assert named(report, WHOLE)["outcome"] == "PASS"


def test_dora_divides_by_the_norm_of_a_shard(report: dict[str, Any]) -> None:
    cell = named(report, DORA)
    assert (cell["outcome"], cell["findings"][0]["check"]) == ("XFAIL", "activations")


def test_a_checkpoint_of_adapters_holds_no_other_weight(run: Path, report: dict[str, Any]) -> None:
    attempt = run / "cells" / named(report, RESUMED)["id"] / "attempt-1"
    (file,) = (attempt / "checkpoint").glob("iter_0000001/.metadata")
    saved = FileSystemReader(file.parent).read_metadata().state_dict_metadata
    others = {name.partition("/")[0] for name in saved if ".adapter." not in name}
    assert others == {"rng_state", "common_state"}
    record = json.loads((attempt / "resumed" / "ranks" / "rank-00000.json").read_text())
    assert all(".adapter." in seen["name"] for seen in record["states"][0]["parameters"])
    assert record["frozen"] and all(seen["after"] == seen["before"] for seen in record["frozen"])


def test_no_layout_of_the_matrix_is_rejected(root: Path) -> None:
    assert expand(read_matrix(root / "matrices" / "adapters.yaml")).rejected == ()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("dora_norm_of_row_shards", "norm of a row on each rank: 2.000, 2.000; of the whole row: 2.828"),
        ("canonical_lora_odd_rows", "5 tokens on a rank of tp 2"),
        ("canonical_lora_some_targets", "'NoneType' object is not callable"),
    ],
)
def test_a_reproducer_shows_the_fault(root: Path, name: str, shown: str) -> None:
    ready = prepare(read_matrix(root / "matrices" / "adapters.yaml").stacks.values(), lambda text: None)["bridge062"]
    script = root / "docs" / "reproducers" / f"{name}.py"
    done = subprocess.run([ready.python, "-W", "ignore", str(script)], capture_output=True, text=True)
    assert (done.returncode, shown in done.stdout) == (1, True), done.stderr
