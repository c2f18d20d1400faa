"""Bisections of a real repository: the installed Megatron's own code, one commit of which breaks a data path."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from harness.judge.bisection import Bisection
from harness.words.jsonable import from_jsonable, loads
from tests.app.conftest import harness, write_matrix
from tests.edge.test_stack_checkout import git

pytestmark = pytest.mark.train
UTILS, INIT = "megatron/core/utils.py", "megatron/core/__init__.py"
SENT = "_broadcast(batch['max_seqlen'])"
MATRIX = """
name: bisected
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 4, seq_length: 32}}
checks: {{canaries: []}}
matrix: {{tp: 2, packing: sft, stack: here}}
stacks:
  here:
    - {{checkout: {repository}, {ref}package: megatron-lm}}
    - {{python: {python}}}
"""
CELL = "tp2-pp1-cp1-sft"


@dataclass
class Project:
    """A clone whose commits are known by short names."""

    folder: Path
    commits: dict[str, str] = field(default_factory=dict)

    def commit(self, name: str, path: str, old: str, new: str) -> None:
        """Replace the first `old` in a file; an empty one is the end of it."""
        file = self.folder / path
        text = file.read_text() if file.exists() else ""
        assert old in text
        file.write_text(text.replace(old, new, 1) if old else text + new)
        git(self.folder, "add", path)
        git(self.folder, "commit", "--quiet", "-m", f"Commit {name}")
        self.named(name)

    def named(self, name: str) -> None:
        self.commits[name] = git(self.folder, "rev-parse", "HEAD")

    def name(self, commit: str) -> str:
        return {known: name for name, known in self.commits.items()}[commit]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """base - note - broken - mended - merge - text - tip; guilty hangs on note and comes in with merge."""
    folder = tmp_path_factory.mktemp("project")
    spec = importlib.util.find_spec("megatron.core")
    assert spec is not None and spec.origin is not None
    installed = Path(spec.origin).parents[1]
    shutil.copytree(installed, folder / "megatron", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".gitignore").write_text("__pycache__/\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "Commit base")
    made = Project(folder)
    made.named("base")
    made.commit("note", "README.md", "", "A note.\n")
    git(folder, "branch", "side")
    made.commit("broken", INIT, "import ", "import import ")
    made.commit("mended", INIT, "import import ", "import ")
    git(folder, "checkout", "--quiet", "side")
    made.commit("guilty", UTILS, SENT, SENT.replace("])", "] + 1)"))
    git(folder, "checkout", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-ff", "-m", "Commit merge", "side")
    made.named("merge")
    made.commit("text", "README.md", "", "More.\n")
    made.commit("tip", UTILS, "", "\n# The end.\n")
    return made


@dataclass
class Ran:
    project: Project
    folder: Path
    environment: dict[str, str]
    killed: str  # what the bisection had said when it was killed
    done: subprocess.CompletedProcess[str]

    def bisect(self, *options: str, good: str = "base", bad: str = "tip") -> subprocess.CompletedProcess[str]:
        return harness(*self.command(*options, good=good, bad=bad), cwd=self.folder, env=self.environment)

    def command(self, *options: str, good: str = "base", bad: str = "tip") -> list[str]:
        known = self.project.commits
        ends = ["--good", known.get(good, good), "--bad", known.get(bad, bad)]
        return [
            "bisect",
            str(self.folder / "small.yaml"),
            "--repo",
            str(self.project.folder),
            *ends,
            "--no-shrink",
            *options,
        ]

    def result(self, done: subprocess.CompletedProcess[str], folder: Path | None = None) -> Bisection:
        assert done.returncode in (0, 3), done.stdout + done.stderr
        file = (folder or self.folder) / done.stdout.strip().splitlines()[-1].strip()
        return from_jsonable(Bisection, loads(file.read_text()))


@pytest.fixture(scope="module")
def ran(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The first bisection, killed in its first round and started again."""
    folder = tmp_path_factory.mktemp("bisected")
    environment = {"HARNESS_STACKS": str(folder / "kept")}
    text = MATRIX.format(repository=project.folder, ref="ref: main, ", python=sys.executable)
    write_matrix(folder, text)
    made = Ran(project, folder, environment, "", subprocess.CompletedProcess([], 0))
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "harness", *made.command()],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        made.killed += line
        if line.startswith("[1/"):  # a cell has ended, the others have not
            break
    process.kill()
    process.stdout.close()
    process.wait()
    made.done = made.bisect()
    return made


def test_the_guilty_commit_is_found_behind_a_merge_and_a_commit_that_does_not_import(ran: Ran) -> None:
    found = ran.result(ran.done)
    assert ran.done.returncode == 0
    assert found.found is not None
    assert ran.project.name(found.found.name) == "guilty"
    assert (found.found.subject, found.found.author) == ("Commit guilty", "t")
    assert [(ran.project.name(parent.name), parent.state[-4:]) for parent in found.found.parents] == [("note", "good")]
    assert found.cells == (CELL,)


def test_its_finding_names_the_place(ran: Ran) -> None:
    found = ran.result(ran.done)
    (first,) = [item for item in found.findings if item.check == "params_agree_plan"]
    assert (first.lane.value, first.where["field"], first.where["ranks"]) == ("metadata", "max_seqlen_q", [1])
    assert first.message in ran.done.stdout
    assert "Commit guilty" in ran.done.stdout


def test_a_commit_that_does_not_import_is_skipped_with_the_reason(ran: Ran) -> None:
    done = ran.bisect("--first-parent", good="base", bad="mended")
    assert done.returncode == 2
    assert "is good: every chosen cell passes" in " ".join(done.stderr.split())
    done = ran.bisect(good="base", bad="broken")
    assert done.returncode == 3
    assert "SyntaxError" in done.stderr


def test_a_killed_bisection_goes_on_and_says_so(ran: Ran) -> None:
    assert "judging both ends" in ran.killed
    assert "going on with" in ran.done.stderr
    assert not list(ran.folder.glob("reports/bisect-*/running.json"))


def test_nothing_is_judged_twice(ran: Ran) -> None:
    before = sorted(ran.folder.glob("reports/bisect-*/runs/*"))
    again = ran.result(ran.bisect())
    assert again.found == ran.result(ran.done).found
    assert all(point.kept or point.state == "skipped" for point in again.points)
    by_path = ran.result(ran.bisect("--paths", UTILS))
    assert by_path.found is not None
    assert ran.project.name(by_path.found.name) == "guilty"
    assert len(by_path.points) <= 3
    runs = [path for path in sorted(ran.folder.glob("reports/bisect-*/runs/*")) if path not in before]
    assert [json.loads((run / "report.json").read_text())["counts"]["PASS"] for run in runs] == [0] * len(runs)


def test_with_first_parents_the_merge_that_brought_it_is_found(ran: Ran) -> None:
    found = ran.result(ran.bisect("--first-parent"))
    assert found.found is not None
    assert ran.project.name(found.found.name) == "merge"
    states = {ran.project.name(parent.name): parent.state for parent in found.found.parents}
    assert states == {"mended": "good", "guilty": "bad"}


def test_the_command_it_gives_reproduces_the_failure(ran: Ran) -> None:
    found = ran.result(ran.done)
    words = found.reproduce.split()
    assert words[:2] == ["harness", "run"]
    done = harness(*words[1:], cwd=ran.folder, env=ran.environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found.findings[0].message in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("ends", "options", "said"),
    [
        ({"good": "tip", "bad": "base"}, (), "add --find fixed, or exchange the ends"),
        ({"good": "base", "bad": "base"}, (), "names the same commit"),
        ({"good": "gone"}, (), "no commit, tag or branch 'gone'"),
        ({}, ("--paths", "gone.py"), "neither end has it"),
        ({"bad": "mended"}, ("--paths", "README"), "neither end has it"),
        ({}, ("--only", "tp8*"), "no such cell"),
    ],
)
def test_ends_and_options_that_cannot_be_meant_are_bad_input(
    ran: Ran, ends: dict[str, str], options: tuple[str, ...], said: str
) -> None:
    done = ran.bisect(*options, **ends)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def working_tree_matrix(ran: Ran, folder: Path) -> Path:
    return write_matrix(folder, MATRIX.format(repository=ran.project.folder, ref="", python=sys.executable))


def test_git_bisect_run_goes_by_the_exit_codes(ran: Ran, tmp_path: Path) -> None:
    matrix, clone, known = working_tree_matrix(ran, tmp_path), ran.project.folder, ran.project.commits
    git(clone, "bisect", "start", "--first-parent", known["merge"], known["broken"])
    try:
        git(clone, "checkout", "--quiet", known["broken"])
        run = ["run", str(matrix), "--bisect", "--only", f"{CELL}-here", "--run-dir", str(tmp_path)]
        unknown = harness(*run, cwd=tmp_path, env=ran.environment)
        assert unknown.returncode == 125, unknown.stdout + unknown.stderr
        said = git(clone, "bisect", "run", sys.executable, "-m", "harness", *run)
        assert f"{known['merge']} is the first bad commit" in said
    finally:
        git(clone, "bisect", "reset", "main")


def test_a_working_tree_with_changes_says_so(ran: Ran, tmp_path: Path) -> None:
    clone = ran.project.folder
    (clone / "README.md").write_text("changed\n")
    try:
        done = harness("run", working_tree_matrix(ran, tmp_path), "--dry-run", cwd=tmp_path)
        assert "megatron-lm as it lies there" in done.stdout
    finally:
        git(clone, "checkout", "--", "README.md")


@pytest.mark.parametrize("arguments", [["gone.yaml", "--bisect"], ["--bisect", "--typo"]])
def test_bad_input_ends_git_bisect(arguments: list[str], tmp_path: Path) -> None:
    assert harness("run", *arguments, cwd=tmp_path).returncode == 128


NESTED = """
name: nested
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 4, seq_length: 32}}
checks: {{canaries: []}}
matrix: {{tp: 2, packing: sft, stack: here}}
stacks:
  here:
    - {{checkout: {outer}, ref: main, package: skyrl}}
    - {{checkout: {inner}, ref: main, package: megatron-lm}}
    - {{python: {python}}}
"""


def test_a_moved_submodule_is_searched_in_turn(ran: Ran, tmp_path: Path) -> None:
    """The outer commit only moves the pin over the guilty commit of the project above, past a commit of a note."""
    outer, known = tmp_path / "outer", ran.project.commits
    (outer / "skyrl").mkdir(parents=True)
    (outer / "skyrl" / "__init__.py").touch()
    (outer / ".gitmodules").write_text(f'[submodule "lm"]\n\tpath = lm\n\turl = {ran.project.folder}\n')
    git(outer, "init", "--quiet", "--initial-branch=main")
    git(outer, "add", ".")
    hashes = []
    for name in ("note", "guilty"):
        git(outer, "update-index", "--add", "--cacheinfo", f"160000,{known[name]},lm")
        git(outer, "commit", "--quiet", "-m", f"Pin {name}")
        hashes.append(git(outer, "rev-parse", "HEAD"))
    text = NESTED.format(outer=outer, inner=ran.project.folder, python=sys.executable)
    ends = ["--good", hashes[0], "--bad", hashes[1], "--nested", "lm", "--no-shrink"]
    command = ["bisect", write_matrix(tmp_path, text), "--repo", outer, *ends]
    done = harness(*command, cwd=tmp_path, env=ran.environment)
    found = ran.result(done, tmp_path)
    assert found.found is not None and found.nested is not None and found.nested.found is not None
    assert (found.found.name, found.found.subject) == (hashes[1], "Pin guilty")
    assert (found.nested.found.name, found.nested.found.subject) == (known["guilty"], "Commit guilty")
    assert "inside what it pins:" in done.stdout
