"""Forks of Megatron-LM that refuse what the harness chooses: the modules of the installed wheel, one of them edited."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import megatron.core
import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.launch.stacks.test_checkout import git

pytestmark = pytest.mark.train
MATRIX = """\
name: forks
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 4, seq_length: 64}}
stacks:
  needs: &fork [{{python: {python}}}, {{checkout: needs, package: megatron-lm}}]
  lacks: [{{python: {python}}}, {{checkout: lacks, package: megatron-lm}}]
  old: [{{python: {python}}}, {{checkout: old, package: megatron-lm}}]
matrix:
  stack: [needs, lacks, old]
  packing: sft
"""
START = "def validate_args(args, defaults={}):\n"
EDITS = {
    "needs": (
        "training/arguments.py",
        START,
        f"{START}    assert args.exit_duration_in_mins, 'a run must end in time'\n",
    ),
    "lacks": ("training/arguments.py", "'--sft'", "'--supervised'"),
    "old": ("core/package_info.py", "MAJOR = 0\nMINOR = 19\n", "MAJOR = 0\nMINOR = 10\n"),
}


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The cell of each fork, as the report of one run has it; "run": its exit code and what it printed."""
    folder = tmp_path_factory.mktemp("forks")
    installed = Path(str(megatron.core.__file__)).parents[1]
    for name, (file, old, new) in EDITS.items():
        root = folder / name
        shutil.copytree(installed, root / "megatron", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "pretrain_gpt.py").write_text("def forward_step(): ...\n")
        text = (root / "megatron" / file).read_text()
        assert old in text
        (root / "megatron" / file).write_text(text.replace(old, new))
        git(root, "init", "--quiet")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", name)
    done = harness("run", write_matrix(folder, MATRIX.format(python=sys.executable)), cwd=folder)
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    cells = {cell["axes"]["stack"]: cell for cell in report["cells"] if cell["axes"]["packing"] == "sft"}
    return {**cells, "run": {"code": done.returncode, "output": done.stderr}}


@pytest.mark.parametrize(
    ("fork", "words"),
    [
        ("needs", "upstream needs --exit-duration-in-mins, which is not set: AssertionError: a run must end in time"),
        ("lacks", "SystemExit: unrecognized arguments: --sft"),
        ("old", "megatron/core is megatron-core 0.10.2, and the harness supports 0.13 and later"),
    ],
)
def test_the_cell_is_an_error_that_says_what_upstream_refuses(
    fork: str, words: str, forks: dict[str, dict[str, Any]]
) -> None:
    assert forks[fork]["outcome"] == "ERROR"
    assert words in forks[fork]["reason"]
    classes = {finding["fault_class"] for finding in forks[fork]["findings"]}
    assert classes <= {"configuration refused by upstream"}


def test_the_release_is_named_once_and_nothing_has_failed(forks: dict[str, dict[str, Any]]) -> None:
    assert forks["run"]["code"] == 3
    assert forks["run"]["output"].count("stack old cannot be used: ") == 1
