"""The same matrix on two nights, with a bug committed in between: the second report says what changed.

The software under test is a branch of a repository that the test makes: a copy of the installed megatron-core.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch.stacks.test_checkout import git
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]
MATRIX = """\
name: nightly
model: {layers: 1, hidden: 32, heads: 2, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 1, global_batch: 2, seq_length: 32}
matrix: {tp: [1, 2], packing: reference, stack: [main]}
stacks:
  main:
    - {python: PYTHON}
    - {checkout: REPOSITORY, ref: main, package: megatron-lm}
"""
# Without this all-reduce every tensor rank normalises by its own share of the vocabulary.
LOSS = "core/tensor_parallel/cross_entropy.py"
SUM = """\
        torch.distributed.all_reduce(
            sum_exp_logits, op=torch.distributed.ReduceOp.SUM, group=tp_group
        )
"""


def repository(folder: Path) -> Path:
    spec = importlib.util.find_spec("megatron")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    source = Path(next(iter(spec.submodule_search_locations)))
    folder.mkdir()
    shutil.copytree(source, folder / "megatron", ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "--quiet", "--initial-branch=main")
    commit(folder, "As released")
    return folder


def commit(folder: Path, message: str) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", message)
    return git(folder, "rev-parse", "HEAD")


def break_the_loss(folder: Path) -> str:
    """Make three commits, the second without the sum over tensor ranks; returns the hash of the last."""
    commit(folder, "Wording")
    path = folder / "megatron" / LOSS
    text = path.read_text()
    assert text.count(SUM) == 1
    path.write_text(text.replace(SUM, ""))
    commit(folder, "One collective less in the loss")
    return commit(folder, "More wording")


def report_of(folder: Path) -> dict[str, Any]:
    """The newest report."""
    runs = sorted((folder / "reports").glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    return json.loads(runs[-1].read_text())  # type: ignore[no-any-return]


def test_the_second_night_says_what_changed_since_when_and_by_which_commits(
    lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_STACKS", str(tmp_path / "stacks"))
    source = repository(tmp_path / "source")
    good = git(source, "rev-parse", "HEAD")
    cluster = Cluster(lab, tmp_path, MATRIX.replace("PYTHON", sys.executable).replace("REPOSITORY", str(source)))
    night = ("run", str(cluster.matrix), "--cluster", "slurm-lab")

    code, output = cluster.run(*night)
    assert code == 0, output
    first = report_of(tmp_path)
    assert first["since"] is None

    bad = break_the_loss(source)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    code, output = cluster.run(*night, "--notify", f"tee {tmp_path}/sent.json", "--notify", "false")
    assert code == 1, output
    second = report_of(tmp_path)
    assert second["since"]["run_id"] == first["run_id"]
    (cell,) = second["since"]["cells"]
    assert cell["id"].startswith("tp2-pp1-cp1-reference-main-")
    assert (cell["change"], cell["since_run"], cell["good_run"]) == (
        "newly failing",
        second["run_id"],
        first["run_id"],
    )
    moved = f"megatron-lm {good[:10]}..{bad[:10]}, 3 commits"
    assert cell["between"] == [moved]
    directory = tmp_path / "reports" / second["run_id"]
    for text in (output, (directory / "report.md").read_text(), (directory / "report.html").read_text()):
        assert "newly failing" in text
        assert moved in text

    assert (tmp_path / "summary.md").read_text().strip() == (directory / "report.md").read_text().strip()
    assert f"::error file={cluster.matrix},line=4,title=FAIL {cell['id']}::numerics, " in output
    assert json.loads((tmp_path / "sent.json").read_text())["since"] == second["since"]
    assert "harness: --notify false: ended with exit code 1" in output

    kept = (directory / "report.json").read_text()
    (tmp_path / "reports" / "history.sqlite").unlink()
    code, _ = cluster.run("report", str(directory))
    assert json.loads((directory / "report.json").read_text())["since"] == json.loads(kept)["since"]
    code, output = cluster.run("compare", first["run_id"], second["run_id"])
    assert code == 1, output
    assert f"main: {moved}" in " ".join(output.split())
