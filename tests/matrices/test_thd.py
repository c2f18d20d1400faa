"""matrices/thd*.yaml: Megatron-LM's packing scheduler in its own script, from the clone HARNESS_MEGATRON_LM_REPO.

The scheduler of branch dev passes, wrong lines in it fail, and so do the parents of its fixes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.matrices.test_trainer import git
from tests.megatron_clone import CLONE, needs_clone

pytestmark = [pytest.mark.train, needs_clone]
URL, DEV = "https://github.com/NVIDIA/Megatron-LM", "d48bd6be0a"
COVERING = (
    "tp1-pp1-cp1-dp2-scheduler-dev-megatron-trainer",
    "tp2-pp2-cp1-nosp-scheduler-dev-megatron-trainer",
    "tp1-pp1-cp2-scheduler-dev-megatron-trainer",
    "tp1-pp1-cp1-dp2-scheduler-eval_interval1-dev-megatron-trainer",
    "tp2-pp2-cp1-dp2-sft_scheduler-dev-megatron-trainer",
)


def outcomes(folder: Path, matrix: str, root: Path, *only: str) -> dict[str, str]:
    """Name of a cell -> its outcome. git finds the clone where the matrix has the URL."""
    options = [option for name in only for option in ("--only", name)]
    settings = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": f"url.{CLONE}.insteadOf", "GIT_CONFIG_VALUE_0": URL}
    done = harness("run", root / "matrices" / matrix, *options, cwd=folder, timeout=3600, env=settings)
    file = only_run(folder / "reports") / "report.json"
    assert file.is_file(), done.stdout + done.stderr
    return {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in json.loads(file.read_text())["cells"]}


def test_the_scheduler_passes_and_counts_padding(tmp_path: Path, root: Path) -> None:
    found = outcomes(tmp_path, "thd.yaml", root, *COVERING)
    known = {name: "XFAIL" if "-cp2-" in name else "PASS" for name in COVERING}
    assert {name: found[name] for name in COVERING} == known


def test_documents_of_mock_data_sets_are_those_of_the_control(tmp_path: Path, root: Path) -> None:
    names = [f"tp1-pp1-cp1-dp2-{path}-dev-megatron-trainer" for path in ("scheduler", "sft_scheduler")]
    found = outcomes(tmp_path, "thd_mock.yaml", root, *names)
    assert {name: found[name] for name in names} == dict.fromkeys(names, "PASS")


def test_the_parent_of_a_fix_fails_and_the_fix_passes(tmp_path: Path, root: Path) -> None:
    found = outcomes(tmp_path, "thd_bugs.yaml", root)
    bad = {name: outcome for name, outcome in found.items() if "_bad-megatron" in name}
    good = {name: outcome for name, outcome in found.items() if "_good-megatron" in name}
    assert (list(bad.values()), list(good.values())) == (["XFAIL"] * 2, ["PASS"] * 2)


def test_on_main_one_rank_of_a_stage_reads_and_a_middle_stage_has_no_batch_for_prediction(
    tmp_path: Path, root: Path
) -> None:
    text = (root / "matrices" / "thd_main.yaml").read_text().replace("../../Megatron-LM", CLONE)
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())["cells"]
    found = {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in cells}
    assert [name for name, outcome in found.items() if outcome != "PASS"] == [
        "tp1-pp4-cp1-scheduler-steps0-mtp1-stage1-main"
    ]
    assert len(found) == 11


@pytest.mark.parametrize(
    ("name", "commit", "printed"),
    [
        (
            "scheduler_counts_padding",
            DEV,
            "documents of (3, 5) tokens: sums 8 and 34, counted 16 and 128\n",
        ),
        (
            "scheduler_prediction_on_middle_stage",
            "d98e8a64dd",
            "on a middle stage that predicts, the batch raises KeyError: 'tokens'\n",
        ),
    ],
)
def test_a_reproducer_shows_the_fault(root: Path, tmp_path: Path, name: str, commit: str, printed: str) -> None:
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "--quiet", "--shared", CLONE, str(tree)], check=True)
    git(tree, "checkout", "-q", commit)
    script = root / "docs" / "reproducers" / f"{name}.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.endswith(printed)


class Edit(NamedTuple):
    """One wrong line in upstream's scheduler, or in the training loop that calls it, and the check that finds it."""

    file: str
    right: str
    wrong: str
    check: str


SCHEDULE, UTILS = (f"megatron/core/datasets/data_schedule{name}.py" for name in ("", "_utils"))
EDITS = {
    "sum_of_packs": Edit(
        SCHEDULE,
        "seqlen_sum_this_global_batch = float(sum(seqlens_gathered))\n",
        "seqlen_sum_this_global_batch = float(sum(seqlens_gathered[:-1]))\n",
        "workload",
    ),
    "offsets_in_another_order": Edit(
        UTILS,
        "cu_seqlens_padded[1:] = torch.cumsum(padded_lengths, dim=0)\n",
        "cu_seqlens_padded[1:] = torch.cumsum(padded_lengths.flip(0), dim=0)\n",
        "params_agree_plan",
    ),
    "labels_of_the_next_token": Edit(
        UTILS,
        "recv_samples[gid][key] = gathered_tensor[start : start + sample_numel].clone()\n",
        "recv_samples[gid][key] = gathered_tensor[start : start + sample_numel].roll(int(key == 'labels'))\n",
        "tokens_placed",
    ),
    "evaluation_of_one_micro_batch": Edit(
        "megatron/training/training.py",
        "num_microbatches=scheduled_eval_num_microbatches,\n",
        "num_microbatches=1,\n",
        "evaluation",
    ),
}


def test_a_wrong_line_in_the_scheduler_is_found(tmp_path: Path) -> None:
    clone, stacks = tmp_path / "clone", []
    subprocess.run(["git", "clone", "--quiet", "--shared", CLONE, str(clone)], check=True)
    for name, edit in EDITS.items():
        git(clone, "checkout", "-q", "-b", name, DEV)
        file = clone / edit.file
        assert file.read_text().count(edit.right) == 1, name
        file.write_text(file.read_text().replace(edit.right, edit.wrong))
        git(clone, "commit", "-qam", name)
        data = "{packages: [datasets==5.2.0, transformers==5.12.1, psutil==7.2.2]}"
        stacks.append(f"  {name}: [{{checkout: {clone}, ref: {name}, package: megatron-lm}}, {data}]\n")
    text = f"name: edits\ntrain: {{steps: 2, eval_interval: 1}}\ndocuments: {{mode: uncut}}\nstacks:\n{''.join(stacks)}"
    text += f"matrix: {{packing: scheduler, trainer: megatron, dp: 2, stack: [{', '.join(EDITS)}]}}\n"
    done = harness("run", write_matrix(tmp_path, text), cwd=tmp_path, timeout=3600)
    file = only_run(tmp_path / "reports") / "report.json"
    assert file.is_file(), done.stdout + done.stderr
    cells = [cell for cell in json.loads(file.read_text())["cells"] if cell["role"] == "cell"]
    found: dict[str, set[Any]] = {
        cell["axes"]["stack"]: {finding["check"] for finding in cell["findings"]} for cell in cells
    }
    assert {name: edit.check in found[name] for name, edit in EDITS.items()} == dict.fromkeys(EDITS, True), found
