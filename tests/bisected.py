"""A repository to bisect, with the installed Megatron's code and commits that have short names."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.serialization import from_jsonable, loads
from harness.reporting.bisection import Bisection
from tests.cli.conftest import harness, write_matrix
from tests.launch.stacks.test_checkout import git

PARAMS, INIT = "megatron/core/packed_seq_params.py", "megatron/core/__init__.py"
KEPT = "        cu_seqlens = (\n"  # in PackedSeqParams.__post_init__
BROKEN = f"        if dist.get_rank() % 2 and self.max_seqlen_q:\n            self.max_seqlen_q += 1\n{KEPT}"
CELL = "tp2-pp1-cp1-reference"


@dataclass
class Project:
    """A clone whose commits have short names."""

    folder: Path
    commits: dict[str, str] = field(default_factory=dict)

    def commit(self, name: str, path: str, old: str, new: str) -> None:
        """Commit a file with the first `old` replaced; empty: `new` is appended."""
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


def copied(folder: Path) -> Project:
    """A new repository with one commit, "base": the code of the installed Megatron."""
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
    return made


def with_a_guilty_commit(folder: Path) -> Project:
    """base - note - broken - repaired - merge - text - tip; guilty is a child of note and the other parent of merge."""
    made = copied(folder)
    made.commit("note", "README.md", "", "A note.\n")
    git(folder, "branch", "side")
    made.commit("broken", INIT, "import ", "import import ")
    made.commit("repaired", INIT, "import import ", "import ")
    git(folder, "checkout", "--quiet", "side")
    made.commit("guilty", PARAMS, KEPT, BROKEN)
    git(folder, "checkout", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-ff", "-m", "Commit merge", "side")
    made.named("merge")
    made.commit("text", "README.md", "", "More.\n")
    made.commit("tip", PARAMS, "", "\n# The end.\n")
    return made


def matrix_of(
    *layers: str, python: str | None = sys.executable, axes: str = "tp: 2", path: str = "reference", parts: str = ""
) -> str:
    """A matrix of one small cell in a stack of these layers, over the tests' own Python unless it is None."""
    whole = [*layers, *([f"{{python: {python}}}"] if python else [])]
    return f"""\
name: bisected
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 1, global_batch: 4, seq_length: 32}}
checks: {{canaries: []}}
{parts}matrix: {{{axes}, packing: {path}, stack: here}}
stacks:
  here:
""" + "".join(f"    - {layer}\n" for layer in whole)


def checkout(folder: Path, package: str = "megatron-lm", ref: str = "main") -> str:
    """A layer of a stack; without a ref it is the working tree."""
    return f"{{checkout: {folder}, {f'ref: {ref}, ' if ref else ''}package: {package}}}"


def result_of(output: str, folder: Path) -> Bisection:
    """The result of a bisection that ran in a folder, from the file that its output names last."""
    file = folder / output.strip().splitlines()[-1].strip()
    return from_jsonable(Bisection, loads(file.read_text()))


@dataclass
class Bisected:
    """A bisection of a project in its own folder."""

    project: Project
    folder: Path
    environment: dict[str, str]
    killed: str  # output of the bisection until it was killed
    done: subprocess.CompletedProcess[str]

    def bisect(self, *options: str, good: str = "base", bad: str = "tip") -> subprocess.CompletedProcess[str]:
        return harness(*self.command(*options, good=good, bad=bad), cwd=self.folder, env=self.environment)

    def command(self, *options: str, good: str = "base", bad: str = "tip", shrink: bool = False) -> list[str]:
        known = self.project.commits
        ends = ["--good", known.get(good, good), "--bad", known.get(bad, bad)]
        matrix, repository = str(self.folder / "small.yaml"), str(self.project.folder)
        return ["bisect", matrix, "--repo", repository, *ends, *([] if shrink else ["--no-shrink"]), *options]

    def result(self, done: subprocess.CompletedProcess[str]) -> Bisection:
        assert done.returncode in (0, 3), done.stdout + done.stderr
        return result_of(done.stdout, self.folder)


def killed_and_resumed(project: Project, folder: Path) -> Bisected:
    """The bisection of a project, killed in its first round and started again."""
    environment = {"HARNESS_STACKS": str(folder / "kept")}
    write_matrix(folder, matrix_of(checkout(project.folder)))
    made = Bisected(project, folder, environment, "", subprocess.CompletedProcess([], 0))
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
        if line.startswith("[1/"):  # one cell has ended, others have not
            break
    process.kill()
    process.stdout.close()
    process.wait()
    made.done = made.bisect()
    return made
