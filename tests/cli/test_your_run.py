"""A pasted command for an 8B model: PASS on a clone of Megatron-LM, and FAIL at the right place for edits of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import harness
from tests.cli.test_from_run import SFT_8B

pytestmark = [pytest.mark.train, pytest.mark.long]
VARIABLE = "HARNESS_MEGATRON_LM_REPO"


class Bug(NamedTuple):
    """A line of upstream's code, what takes its place, and where the report must see it first."""

    file: str
    line: str
    instead: str
    check: str
    message: str


BUGS = {
    "middle stages get no cu_seqlens": Bug(
        "megatron/core/utils.py",
        "            cu_seqlens = _broadcast_cu_seqlens()\n            _broadcast(max_seqlen)\n"
        "            if cp_size > 1:\n                cu_seqlens_padded = _broadcast_cu_seqlens()\n\n        batch = {",
        "            cu_seqlens = _broadcast_cu_seqlens()\n            _broadcast(max_seqlen)\n"
        "            if cp_size > 1:\n                cu_seqlens_padded = _broadcast_cu_seqlens()\n"
        "            cu_seqlens = cu_seqlens_padded = None\n\n        batch = {",
        "params_present",
        "stage 1",
    ),
    "documents leak into each other": Bug(
        "pretrain_gpt.py",
        "            cu_seqlens_q=cu_seqlens_for_params,\n            cu_seqlens_kv=cu_seqlens_for_params,",
        "            cu_seqlens_q=cu_seqlens_for_params[[0, -1]],\n"
        "            cu_seqlens_kv=cu_seqlens_for_params[[0, -1]],",
        "params_agree_plan",
        "cu_seqlens",
    ),
    "context ranks split rows, not documents": Bug(
        "megatron/core/utils.py",
        '    if use_per_sequence_balancing or batch.get("cu_seqlens") is None:',
        "    if True:",
        "tokens_placed",
        "cp",
    ),
    "positions go on from one document to the next": Bug(
        "megatron/core/models/common/embeddings/rope_utils.py",
        "    local_pos = token_pos - local_seq_start",
        "    local_pos = token_pos",
        "activations",
        "layer 1",
    ),
    "labels are those of the slot before": Bug(
        "megatron/training/datasets/sft_dataset.py",
        "torch.tensor(pack_targets[1:], dtype=torch.int64)",
        "torch.tensor(pack_targets[:-1], dtype=torch.int64)",
        "tokens_placed",
        "labels",
    ),
}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = os.environ.get(VARIABLE)
    if not source:
        pytest.skip(f"{VARIABLE} names no clone of Megatron-LM")
    folder = tmp_path_factory.mktemp("clone") / "Megatron-LM"
    subprocess.run(["git", "clone", "--quiet", source, str(folder)], check=True)
    return folder


def verdict(clone: Path, folder: Path) -> tuple[int, list[dict[str, Any]], str]:
    """Run the command in the clone; return the exit code, the cells of report.json and the output."""
    (folder / "train.sh").write_text(SFT_8B)
    (clone / "train.matrix.yaml").unlink(missing_ok=True)
    done = harness("run", "--from", str(folder / "train.sh"), "--run-dir", str(folder), "--no-history", cwd=clone)
    (report,) = folder.glob("*/report.json")
    return done.returncode, json.loads(report.read_text())["cells"], done.stdout + done.stderr


def test_main_passes(clone: Path, tmp_path: Path) -> None:
    code, cells, said = verdict(clone, tmp_path)
    assert code == 0, said
    assert [cell["outcome"] for cell in cells] == ["PASS"] * 3


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_seen_at_its_place(name: str, clone: Path, tmp_path: Path) -> None:
    bug = BUGS[name]
    file = clone / bug.file
    text = file.read_text()
    assert text.count(bug.line) == 1, f"{bug.file} has changed: {bug.line}"
    file.write_text(text.replace(bug.line, bug.instead))
    try:
        code, cells, said = verdict(clone, tmp_path)
    finally:
        file.write_text(text)
    assert code == 1, said
    first = next(cell["findings"][0] for cell in cells if cell["outcome"] == "FAIL")
    assert (first["check"], bug.message in first["message"]) == (bug.check, True), first
