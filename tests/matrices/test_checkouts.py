"""Data paths of Megatron-LM checkouts. HARNESS_MEGATRON_LM_REPO names a clone that has the tags and main of 2026-08."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import harness, only_run, write_matrix
from tests.launch.stacks.test_checkout import git
from tests.megatron_clone import CLONE, needs_clone

pytestmark = [pytest.mark.train, needs_clone]
HEAD = """\
name: checkout
matrix:
  stack: [here]
  packing: [{packing}]
  layout:
    {layouts}
stacks:
  here: {{checkout: {clone}, ref: {ref}, package: megatron-lm}}
"""


def run(folder: Path, ref: str, packing: str, *layouts: str, clone: str | Path = CLONE) -> list[dict[str, Any]]:
    """Run a matrix; returns the cells of its report without controls."""
    rows = "\n    ".join(f"- {{{layout}}}" for layout in layouts)
    text = HEAD.format(packing=packing, layouts=rows, clone=clone, ref=ref)
    done = harness("run", write_matrix(folder, text), cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    return [cell for cell in report["cells"] if cell["role"] == "cell"]


def findings(cell: dict[str, Any], check: str, field: str | None = None) -> list[dict[str, Any]]:
    return [
        item["where"]
        for item in cell["findings"]
        if item["check"] == check and (field is None or item["where"].get("field") == field)
    ]


SFT = ("tp: 2, pp: 4, cp: 1, micro_batch_size: 1", "tp: 2, pp: 1, cp: 1, micro_batch_size: 2")


@pytest.mark.parametrize(("ref", "merged"), [("core_v0.18.2", "FAIL"), ("main", "PASS")])
def test_sft_of_later_checkouts_passes_and_rows_of_a_micro_batch_are_merged_from_0_19(
    ref: str, merged: str, tmp_path: Path
) -> None:
    stages, rows = run(tmp_path, ref, "sft", *SFT)
    assert stages["outcome"] == "PASS", stages["findings"]
    assert rows["outcome"] == merged, rows["findings"]


@pytest.mark.parametrize(
    ("right", "wrong", "check"),
    [
        (
            "        loss = torch.sum(losses * loss_mask)\n",
            "        loss = 2 * torch.sum(losses * loss_mask)\n",
            "grad_norm",
        ),
        ("num_tokens = loss_mask.sum()", "num_tokens = (2 * loss_mask).sum()", "token_count"),
    ],
)
def test_the_loss_is_that_of_the_script(right: str, wrong: str, check: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(tmp_path, "clone", "--quiet", "--shared", CLONE, str(tree))
    git(tree, "checkout", "--quiet", "-b", "edited", "d98e8a64dd")
    script = tree / "pretrain_gpt.py"
    assert right in script.read_text()
    script.write_text(script.read_text().replace(right, wrong, 1))
    git(tree, "commit", "--quiet", "-am", "Edit the loss")
    (cell,) = run(tmp_path, "edited", "sft", SFT[0], clone=tree)
    assert (cell["outcome"], cell["lanes"]["metadata"]) == ("FAIL", "pass")
    assert findings(cell, check)


def test_sft_of_core_0_17_gives_tp_ranks_of_middle_and_last_stages_no_metadata(tmp_path: Path) -> None:
    (cell,) = run(tmp_path, "core_v0.17.1", "sft", SFT[0])
    assert (cell["outcome"], cell["lanes"]["metadata"]) == ("FAIL", "fail")
    (absent,) = findings(cell, "params_present")
    assert (absent["stages"], absent["ranks"]) == ([3], [7])
    for field in ("cu_seqlens_q", "max_seqlen_q"):
        (wrong,) = findings(cell, "params_agree_plan", field)
        assert (wrong["stages"], wrong["ranks"]) == ([1, 2], [3, 5])


def test_sft_of_core_0_16_gives_middle_stages_no_metadata_and_the_first_a_matrix(tmp_path: Path) -> None:
    middle, one = run(tmp_path, "core_v0.16.1", "sft", SFT[0], "tp: 1, pp: 1, cp: 1, micro_batch_size: 1")
    (absent,) = findings(middle, "params_present")
    assert absent["stages"] == [1, 2]
    (shape,) = findings(one, "params_form")
    assert (one["outcome"], shape["field"]) == ("FAIL", "shape")


def test_the_scheduler_of_main_passes_in_every_layout(tmp_path: Path) -> None:
    sizes = ((1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 4, 1, 1, 1), (1, 1, 2, 1, 1), (1, 1, 1, 2, 1), (1, 2, 1, 1, 2))
    layouts = [f"tp: {tp}, pp: {pp}, cp: {cp}, dp: {dp}, vpp: {vpp}" for tp, pp, cp, dp, vpp in sizes]
    cells = run(tmp_path, "main", "scheduler", *layouts)
    assert [cell["outcome"] for cell in cells] == ["PASS"] * len(sizes), [cell["findings"] for cell in cells]
