"""Bisections of Megatron-LM itself. HARNESS_MEGATRON_LM_REPO names a clone that has the tags and main of 2026-08."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.serialization import from_jsonable, loads
from harness.reporting.bisection import Bisection
from tests.cli.conftest import harness, write_matrix
from tests.megatron_clone import CLONE, needs_clone

pytestmark = [pytest.mark.train, needs_clone]
LIMIT_S = 3600
STAGES = """\
name: stages
train: {steps: 2}
documents: {mode: file, lengths: [16, 8, 24, 4, 12, 32, 20, 28]}
matrix: {tp: 2, pp: 4, packing: sft}
"""
# Two rows in a micro-batch, so that each has half the weight in the auxiliary loss.
ROWS = """\
name: rows
model: {layers: 2, moe: {aux_loss: seq_aux_loss}}
train: {steps: 2, global_batch: 8, seq_length: 64}
documents: {mode: file, lengths: [16, 8, 24, 4, 12, 32, 20, 28]}
matrix: {packing: unpacked, micro_batch_size: 2}
"""


def bisect(folder: Path, matrix: Path, *options: str) -> Bisection:
    command = ["bisect", matrix, "--repo", CLONE, *options, "--no-shrink"]
    done = harness(*command, cwd=folder, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = folder.glob("reports/bisect-*/result.json")
    return from_jsonable(Bisection, loads(file.read_text()))


def test_the_commit_that_gave_all_stages_their_metadata_is_found_between_two_releases(tmp_path: Path) -> None:
    """The release branch left main before that commit, so the merge base is judged too."""
    matrix = write_matrix(tmp_path, STAGES)
    ends = ["--bad", "core_v0.17.1", "--good", "core_v0.18.0", "--find", "fixed"]
    found = bisect(tmp_path, matrix, *ends)
    assert found.found is not None
    assert found.found.name.startswith("5e4fc931ba")
    assert [parent.state for parent in found.found.parents] == ["bad"]
    (absent,) = [item for item in found.findings if item.check == "params_present"]
    assert (absent.where["stages"], absent.where["ranks"]) == ([3], [7])
    assert len(found.points) - len(found.skipped) <= 9 + 3  # 460 commits; both ends and the merge base


def test_the_commit_that_repaired_the_auxiliary_loss_under_context_parallelism_is_found(
    tmp_path: Path, root: Path
) -> None:
    text = (root / "matrices" / "known_bugs.yaml").read_text().replace("../../Megatron-LM", CLONE)
    ends = ["--bad", "f6e0d425a5~12", "--good", "9fba363d71", "--find", "fixed"]
    only = ["--only", "tp1-pp1-cp2-reference-meanloss-moe4x2-aux_loss-aux_bad"]
    found = bisect(tmp_path, write_matrix(tmp_path, text), *ends, *only)
    assert found.found is not None
    assert found.found.name.startswith("f6e0d425a5")
    leading = found.findings[0]
    assert (leading.check, "gradients of aux_loss in layer 1" in leading.message) == ("aux_loss", True)
    assert "the ratio is x 1/cp" in leading.message


def test_the_commit_that_broke_the_scale_of_the_auxiliary_loss_is_found(tmp_path: Path) -> None:
    """To leave out padding, the commit uses the tokens of one row for those of all rows: in releases 0.16 to 0.18.

    A first attempt had been reverted four days before, and e3fe5508c9 fixed it half a year later.
    """
    matrix = write_matrix(tmp_path, ROWS)
    found = bisect(tmp_path, matrix, "--good", "71c49b56da~12", "--bad", "50132f2531")
    assert found.found is not None
    assert found.found.name.startswith("71c49b56da")
    assert [parent.state for parent in found.found.parents] == ["good"]
    leading = found.findings[0]
    assert (leading.check, "gradients of seq_aux_loss in layer 1" in leading.message) == ("aux_loss", True)
    assert "the ratio is 0.5" in leading.message
    assert len(found.points) - len(found.skipped) <= 5 + 2  # 18 commits, and both ends
