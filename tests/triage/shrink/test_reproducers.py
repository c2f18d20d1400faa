"""Standalone reproducers run for real: they fail in the release with the fault, and pass in one without it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.outcomes import Finding, Lane, Outcome
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.provenance import Provenance
from harness.core.run.report import ReportCell
from harness.core.stack import Checkout, Stack
from harness.core.tolerances import ToleranceOverrides
from harness.features.experts.config import MoeConfig
from harness.inputs.matrix_file import read_matrix
from harness.launch.stacks.checkout import release_worktrees
from harness.launch.stacks.prepare import prepare
from harness.triage.shrink.reproducers import Ends, write_reproducers
from harness.triage.shrink.search import Smallest
from harness.triage.shrink.trials import Shrunk

pytestmark = pytest.mark.train
CLONE = os.environ.get("HARNESS_MEGATRON_LM_REPO", "")
NO_CORE = Finding(lane=Lane.METADATA, check="params_present", message="none", fault_class="A last stage: nothing")
SFT = CellConfig(
    layout=Layout(tp=2, pp=3),
    data_path="sft",
    train=TrainConfig(steps=1, global_batch=2, seq_length=16),
    documents=DocumentsConfig(mode="file", lengths=(5, 4)),
)
WEIGHT = Finding(lane=Lane.NUMERICS, check="aux_loss", message="half", fault_class="K wrong weight of a loss")
EXPERTS = replace(
    SFT,
    layout=Layout(cp=2),
    data_path="reference",
    model=ModelConfig(layers=1, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=64, moe=MoeConfig(aux_loss="aux_loss")),
)
BAD = Stack(name="bad", packages=("megatron-core==0.17.1",))
GOOD = Stack(name="good", packages=("megatron-core==0.19.2",))


def shrunk_in(folder: Path, stack: Stack, config: CellConfig = SFT, finding: Finding = NO_CORE) -> Shrunk:
    values: dict[str, Any] = {"axes": {}, "lanes": {}, "timing": {}, "reproduce": ""}
    cell = ReportCell(id="c", outcome=Outcome.FAIL, layout=config.layout, findings=[finding], **values)
    return Shrunk(
        folder=folder,
        origin=cell,
        finding=finding,
        smallest=Smallest(config=config, steps=(), needs=(), rounds=1, tried=1, minimal=True),
        cell=cell,
        config=replace(config, stack=stack.name),
        provenance=Provenance(),
        matrix=folder / "smallest.yaml",
        stack=stack,
        tolerances=ToleranceOverrides(),
    )


def run_in(stack: Stack, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The stack's Python, with its checkouts; it also finds this environment's pytest."""
    user = str(folder / "test")
    ready = prepare([stack], print, user=user)[stack.name]
    own = next(path for path in sys.path if path.endswith("site-packages"))
    code = f"import sys; sys.path.append({own!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    # No plug-ins: this environment's name the harness, which the stack cannot import.
    plain = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    try:
        return subprocess.run(
            [ready.python, "-c", code, "-q", "-p", "no:cacheprovider", *arguments],
            cwd=folder,
            env={**os.environ, **plain, "PYTHONPATH": os.pathsep.join(ready.paths)},
            capture_output=True,
            text=True,
        )
    finally:
        release_worktrees(user)


def test_the_script_of_a_failed_cell_fails_there_and_passes_in_a_later_release(tmp_path: Path) -> None:
    written = write_reproducers(shrunk_in(tmp_path, BAD))
    assert written.script and written.test, written.why_not
    text = written.script.read_text()
    assert "harness" not in text
    assert "DOCUMENTS = [[[6, 5]]]" in text and "EXPECTED = [[([0, 6, 16], 10)]]" in text
    done = run_in(GOOD, written.test.name, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_gradients_of_an_auxiliary_loss_differ_until_they_are_fixed(tmp_path: Path) -> None:
    """Megatron-LM pull request 5047: the loss of routers under cp, with calculate_per_token_loss."""
    earlier = Stack(name="earlier", packages=("megatron-core==0.18.2",))
    written = write_reproducers(shrunk_in(tmp_path, earlier, EXPERTS, WEIGHT))
    assert written.script, written.why_not
    assert "aux_loss" in written.script.read_text()


def test_a_script_that_passes_where_the_cell_failed_is_not_kept(tmp_path: Path) -> None:
    written = write_reproducers(shrunk_in(tmp_path, GOOD, EXPERTS, WEIGHT))
    assert written.why_not == "a script was written, but it passes in the stack in which the cell failed"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.long  # short: the same findings on a wheel of megatron-core, above
@pytest.mark.parametrize(("name", "shown"), [("bridge042", True), ("bridge062", False)])
def test_packed_files_of_bridge(root: Path, tmp_path: Path, name: str, shown: bool) -> None:
    stack = read_matrix(root / "matrices" / "releases.yaml").stacks[name]
    cell = replace(SFT, data_path="bridge_offline", layout=Layout(pp=3))
    written = write_reproducers(shrunk_in(tmp_path, stack, cell))
    assert (written.script is not None) is shown, written.why_not
    if not shown:
        assert "it passes" in written.why_not


def at(ref: str) -> Stack:
    return Stack(name="clone", checkouts=(Checkout(package="megatron-lm", repository=CLONE, ref=ref),))


@pytest.mark.skipif(not CLONE, reason="HARNESS_MEGATRON_LM_REPO names no clone of Megatron-LM")
def test_after_a_bisection_the_files_fail_with_the_bad_commit_and_pass_with_the_good_one(tmp_path: Path) -> None:
    """The scripts of a checkout call its own forward step. Megatron-LM issue 4092 and its fix."""
    bad, good = at("5e4fc931ba~1"), at("5e4fc931ba")
    ends = Ends(bad="megatron-lm 5e4fc931ba~1", good="megatron-lm 5e4fc931ba", good_stack=good)
    folder = tmp_path / "bisection"
    written = write_reproducers(shrunk_in(tmp_path, bad), ends, folder)
    assert written.script and written.test, written.why_not
    assert written.lines.count("bisection/") == 2
    for file in (written.script, written.test):
        assert "Fails with megatron-lm 5e4fc931ba~1, passes with megatron-lm 5e4fc931ba." in file.read_text()
    assert run_in(bad, written.test.name, folder=folder).returncode == 1  # that it passes with the good one: above


@pytest.mark.long  # short: the same decision on one side, above
@pytest.mark.skipif(not CLONE, reason="HARNESS_MEGATRON_LM_REPO names no clone of Megatron-LM")
def test_a_script_that_fails_with_the_good_commit_too_is_not_kept(tmp_path: Path) -> None:
    bad = at("5e4fc931ba~1")
    ends = Ends(bad="a", good="megatron-lm 1", good_stack=replace(bad, name="good"))
    written = write_reproducers(shrunk_in(tmp_path, bad), ends)
    assert written.why_not.startswith("a script was written, but it fails with megatron-lm 1 too: ")
    assert [*tmp_path.iterdir()] == []
