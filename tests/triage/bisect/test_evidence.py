"""A found commit reverted at the newer end, in a repository of the installed Megatron's code with one bad commit."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Finding, Lane, Outcome
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.provenance import Provenance
from harness.core.run.report import ReportCell
from harness.core.stack import Checkout, Stack
from harness.core.tolerances import ToleranceOverrides
from harness.judge.diagnosis import fault_classes
from harness.reporting.bisection import Change, End
from harness.triage.bisect.command import confirmed
from harness.triage.shrink.search import Smallest
from harness.triage.shrink.trials import Shrunk
from tests.bisected import BROKEN, KEPT, PARAMS, copied
from tests.launch.stacks.test_checkout import git
from tests.reporting.test_render_issue import bisection

FINDING = Finding(
    lane=Lane.METADATA, check="params_agree_plan", message="max_seqlen", fault_class=fault_classes.MAX_SEQLEN
)
CONFIG = CellConfig(
    layout=Layout(tp=2, sp=True),
    data_path="reference",
    stack="found",
    model=ModelConfig(layers=1, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=64),
    train=TrainConfig(steps=1, global_batch=1, seq_length=16),
    documents=DocumentsConfig(mode="file", lengths=(5,)),
    deadline_s=60,
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """base - guilty - tip - over, which changes the same lines as guilty; tags with these names, and on a merge."""
    folder = tmp_path_factory.mktemp("project")
    made = copied(folder)
    git(folder, "tag", "base")
    for name, old, new in (
        ("guilty", KEPT, BROKEN),
        ("tip", "", "\n# The end.\n"),
        ("over", BROKEN, BROKEN.replace("+= 1", "+= 2")),
    ):
        made.commit(name, PARAMS, old, new)
        git(folder, "tag", name)
    git(folder, "checkout", "--quiet", "-b", "side", "base")
    git(folder, "commit", "--quiet", "--allow-empty", "-m", "Commit side")
    git(folder, "merge", "--quiet", "--no-ff", "-m", "Commit merge", "tip")
    git(folder, "tag", "merge")
    return folder


def shrunk_of(clone: Path, folder: Path) -> Shrunk:
    checkout = Checkout(package="megatron-lm", repository=str(clone), ref="guilty")
    cell = ReportCell(
        id="c",
        axes={},
        layout=CONFIG.layout,
        outcome=Outcome.FAIL,
        lanes={},
        findings=[FINDING],
        timing={},
        reproduce="",
    )
    return Shrunk(
        folder=folder,
        origin=cell,
        finding=FINDING,
        smallest=Smallest(config=CONFIG, steps=(), needs=(), rounds=1, tried=1, minimal=True),
        cell=cell,
        config=CONFIG,
        provenance=Provenance(),
        matrix=folder / "smallest.yaml",
        stack=Stack(name="found", interpreter=sys.executable, checkouts=(checkout,)),
        tolerances=ToleranceOverrides(),
    )


def said(clone: Path, folder: Path, change: str, end: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HARNESS_STACKS", str(folder / "kept"))
    ends = {name: git(clone, "rev-parse", f"{name}^{{commit}}") for name in (change, end)}
    found = replace(
        bisection(), repository=str(clone), found=Change(name=ends[change]), bad=End(requested=end, name=ends[end])
    )
    text = confirmed(found, shrunk_of(clone, folder), folder)
    return text.replace(ends[change][:12], change).replace(ends[end][:12], end)


@pytest.mark.train
@pytest.mark.smoke
def test_the_newer_end_passes_without_the_guilty_commit(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said(clone, tmp_path, "guilty", "tip", monkeypatch) == "confirmed: tip with guilty reverted passes"


@pytest.mark.parametrize(("change", "end", "why"), [("guilty", "over", PARAMS), ("merge", "merge", "is a merge")])
def test_a_commit_that_cannot_be_taken_back_is_told(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, end: str, why: str
) -> None:
    text = said(clone, tmp_path, change, end, monkeypatch)
    assert text.startswith(f"not confirmed: {end} with {change} reverted cannot be prepared: ")
    assert why in text
    assert not list(tmp_path.glob("confirmation-*"))
