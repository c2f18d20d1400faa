"""issue.md from made-up results: whole files, and no path of a machine in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Outcome
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.provenance import Provenance
from harness.core.run.report import FailureView, Report, ReportCell
from harness.core.stack import CheckedOut, StackFacts, Version
from harness.reporting.bisection import Bisection, Change, End, Find, Parent, PointKind, PointState
from harness.reporting.render_issue import Issue, github, public_repository, render_issue, title
from tests.hostile import EVERYTHING, SECRET, TEXTS, UNSEEN, read_markdown
from tests.reporting.test_public_text import HOST, PLACES

HOME = "/ho" + "me/me"  # in two parts, so that no file of the project names one
ENVIRONMENT = f"{HOME}/.cache/packing-harness/stacks/environments/py3.12-48/lib/python3.12/site-packages"
LAYOUT = Layout(tp=2, pp=3, sp=True)
CONFIG = CellConfig(
    layout=LAYOUT,
    data_path="sft",
    stack="bad",
    model=ModelConfig(layers=3),
    train=TrainConfig(steps=1, global_batch=2),
    documents=DocumentsConfig(mode="file", lengths=(19, 64)),
)
MATRIX = """name: smallest
matrix:
  tp: 2
  pp: 3
  packing: sft
  stack: bad
stacks:
  bad:
  - checkout: https://github.com/NVIDIA/Megatron-LM
    ref: 5e4fc931ba000000000000000000000000000000
    package: megatron-lm
"""
TORCH, CORE = Version(name="torch", version="2.15.0"), Version(name="megatron.core", version="0.17.0rc0")
PROVENANCE = Provenance(
    harness="0.1.0",
    harness_commit="0123456789ab",
    devices=["cpu"],
    attention=["harness reference attention"],
    cpu_stubs=["torch.cuda.stream", "torch.Tensor.cuda"],
    imports={TORCH.text: [f"{ENVIRONMENT}/torch/__init__.py"], CORE.text: []},
    stacks={
        "bad": StackFacts(
            python="3.12.1",
            packages=(Version(name="numpy", version="2.5.5"), TORCH),
            checkouts=(
                CheckedOut(
                    project="megatron-lm",
                    ref="main",
                    commit="5e4fc931ba",
                    reverted=(),
                    repository=f"{HOME}/Megatron-LM",
                ),
            ),
        )
    },
    imports_of_stacks={"bad": [TORCH, CORE]},
)
GUILTY, BEFORE = "5e4fc931ba" + "0" * 30, "1a2b3c4d5e" + "0" * 30
FOUND = Change(
    name=GUILTY,
    subject="Read the data on tp rank 0 | of every stage",
    author="A. Author",
    date="2026-03-01",
    parents=(Parent(name=BEFORE, state=PointState.GOOD),),
)


@pytest.fixture
def failed(broken_report: Report) -> ReportCell:
    """A cell with the findings of all failed cells, and paths of a machine in them and in its traceback."""
    cells = [cell for cell in broken_report.cells if cell.outcome is Outcome.FAIL]
    findings = [finding for cell in cells for finding in cell.findings]
    crash = f'File "{ENVIRONMENT}/megatron/core/utils.py", line 3'
    findings[-1] = replace(findings[-1], message=f"{findings[-1].message}; see {HOME}/reports/x/rank-3.log")
    failure = next(cell.failure for cell in cells if cell.failure)
    return replace(cells[0], findings=findings, failure=replace(failure, traceback=f"Traceback:\n  {crash}\nKeyError"))


@pytest.fixture
def issue(failed: ReportCell) -> Issue:
    return Issue(
        cell=failed,
        config=CONFIG,
        matrix=MATRIX,
        provenance=PROVENANCE,
        needs=("needs tp >= 2 and pp >= 3: with tp 1 it passes; with pp 2 it passes",),
        remotes={"megatron-lm": "git@github.com:NVIDIA/Megatron-LM.git"},
        bisection=bisection(),
        confirmation="confirmed: f00dfeed0000 with 5e4fc931ba00 reverted passes",
    )


def bisection(**changes: Any) -> Bisection:
    made = Bisection(
        find=Find.INTRODUCED,
        kind=PointKind.COMMIT,
        project="megatron-lm",
        repository=f"{HOME}/Megatron-LM",
        good=End(requested="core_v0.16.1", name=BEFORE),
        bad=End(requested="main", name="f00dfeed" + "0" * 32),
        found=FOUND,
        candidates=(FOUND,),
        cells=("tp2-pp4-cp1-sft",),
        findings=(),
        evidence=None,
        points=(),
        matrix="triage.yaml",
        reproduce_matrix="reproduce.yaml",
        contrast_matrix="contrast.yaml",
        reproduce="harness run reproduce.yaml",
        command="harness bisect triage.yaml",
        notes=("3 commits could not be judged: they do not import",),
    )
    return replace(made, **changes)


def test_the_whole_file(issue: Issue, golden: Callable[[str, str], None]) -> None:
    golden("issue.md", render_issue(issue))


def test_a_standalone_script_is_shown_as_it_is(issue: Issue) -> None:
    script = 'store = f"file://{folder}/store"\nsys.exit(main())'
    assert f"```python\n{script}\n```" in render_issue(replace(issue, script=f"{script}\n"))


def test_the_whole_file_of_a_run_alone(issue: Issue, golden: Callable[[str, str], None]) -> None:
    golden("issue-run.md", render_issue(replace(issue, bisection=None, confirmation="", needs=(), remotes={})))


def test_it_has_no_path_of_the_machine(issue: Issue) -> None:
    shown = render_issue(issue)
    assert HOME not in shown
    assert "site-packages" not in shown
    assert "megatron/core/utils.py" in shown
    assert "PATH/TO/rank-3.log" in shown


def test_it_has_no_host_of_a_rank(issue: Issue) -> None:
    first, *others = issue.cell.findings
    first = replace(first, message="lost nid001234 and login1")
    facts = replace(issue.provenance, host="login1", hosts=["nid001234.example", "nid001235"])
    text = render_issue(replace(issue, cell=replace(issue.cell, findings=[first, *others]), provenance=facts))
    assert "lost HOST and HOST" in text


def test_the_last_bad_and_first_good_release_are_named(issue: Issue) -> None:
    fixed = Change(name="0.18.0", date="2026-07-01", parents=(Parent(name="0.17.1", state=PointState.BAD),))
    found = bisection(
        find=Find.FIXED, kind=PointKind.RELEASE, project="megatron-core", found=fixed, candidates=(fixed,)
    )
    lines = render_issue(replace(issue, bisection=found)).splitlines()
    assert "| last bad | `0.17.1` |" in lines
    assert "| first good | `0.18.0` (2026-07-01) |" in lines


def test_commits_that_cannot_be_told_apart_are_all_named(issue: Issue) -> None:
    lines = render_issue(replace(issue, bisection=bisection(found=None, candidates=(FOUND, FOUND)))).splitlines()
    assert len([line for line in lines if line.startswith("| new bad, one of | [5e4fc931ba00](https://")]) == 2


def test_the_change_in_the_dependency_that_a_commit_pins_is_named(issue: Issue) -> None:
    inside = bisection(project="megatron-bridge", candidates=(Change(name="c" * 40, subject="Inner"),))
    lines = render_issue(replace(issue, bisection=bisection(nested=inside))).splitlines()
    assert "| change in megatron-bridge | cccccccccccc Inner |" in lines


def test_a_commit_elsewhere_than_on_github_has_no_link(issue: Issue) -> None:
    shown = render_issue(replace(issue, remotes={"megatron-lm": "https://git.example.com/x.git"}))
    assert "| previous good | `1a2b3c4d5e00` |" in shown


def test_the_title_names_the_fault_class_and_the_sizes(issue: Issue) -> None:
    assert title(issue).startswith("Sequence packing (sft): middle stages without cu")
    assert title(issue).endswith("with tp 2 x pp 3, since 5e4fc931ba00")
    minimal = replace(issue, config=replace(CONFIG, layout=Layout()), bisection=None)
    assert title(minimal).endswith("with one rank")


@pytest.mark.parametrize(
    "remote",
    [
        "https://github.com/NVIDIA/Megatron-LM",
        "https://github.com/NVIDIA/Megatron-LM.git",
        "https://token@github.com/NVIDIA/Megatron-LM/",
        "git@github.com:NVIDIA/Megatron-LM.git",
        "ssh://git@github.com/NVIDIA/Megatron-LM",
    ],
)
def test_github_is_recognised_by_any_of_its_urls(remote: str) -> None:
    assert github(remote) == "https://github.com/NVIDIA/Megatron-LM"
    assert public_repository("megatron-lm", remote) == "https://github.com/NVIDIA/Megatron-LM"


@pytest.mark.parametrize("remote", ["", "https://github.com.example/a/b", "/srv/git/Megatron-LM", "https://x.org/a/b"])
def test_any_other_repository_is_a_path_to_fill_in(remote: str) -> None:
    assert github(remote) == ""
    assert public_repository("megatron-lm", remote) == "PATH/TO/Megatron-LM"


@pytest.mark.parametrize("text", [*TEXTS.values(), EVERYTHING], ids=[*TEXTS, "everything"])
def test_hostile_text_stays_text_and_links_nowhere(issue: Issue, text: str) -> None:
    finding = replace(issue.cell.findings[0], message=text, measured=text, bound=text, where={"stage": text})
    failure = FailureView(rank=0, place=Layout().coordinates(0), ended="raised", message=text, traceback=text, log=text)
    cell = replace(issue.cell, id=text, findings=[finding], failure=failure)
    change = Change(name="c" * 40, subject=text, author=text, date=text)
    found = bisection(candidates=(change,), found=change, notes=(text,))
    requested = {"cell": cell, "bisection": found, "needs": (text,), "confirmation": text, "matrix": text}
    stacks = {CONFIG.stack: StackFacts(python=text)}
    shown = render_issue(replace(issue, **requested, provenance=Provenance(stacks=stacks, devices=[text])))
    page = read_markdown(shown)
    assert page.live == []
    assert [link for link in page.links if not link.startswith("https://github.com/NVIDIA/")] == []
    assert page.kinds & {"html_inline", "html_block", "image", "hr", "blockquote_open", "s_open", "em_open"} == set()
    assert len(page.fences) == 2 + bool(text) and not UNSEEN.search(shown)
    assert SECRET not in shown


@pytest.mark.parametrize("place", PLACES)
def test_no_path_or_host_of_a_machine_is_published(issue: Issue, place: str) -> None:
    text = f"cannot read {place} on {HOST}"
    finding = replace(issue.cell.findings[0], message=text, measured=text, bound={"value": text, "origin": text})
    failure = FailureView(rank=0, place=Layout().coordinates(0), ended="raised", message=text, traceback=text, log=text)
    requested = {
        "cell": replace(issue.cell, findings=[finding], failure=failure),
        "needs": (text,),
        "confirmation": text,
    }
    stacks = {CONFIG.stack: replace(PROVENANCE.stacks["bad"], python=text)}
    provenance = replace(issue.provenance, host=HOST, stacks=stacks)
    shown = render_issue(replace(issue, **requested, matrix=f"a: {text}\n", provenance=provenance))
    assert not [word for word in ("melinda", "gpu-node-17") if word in shown]
    assert "cannot read" in shown
