"""Reads a repository's history from git: the commits between two, their contents and their authors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import InfrastructureError
from harness.infra import git


@dataclass(frozen=True, kw_only=True)
class About:
    """Subject, author and date of a commit, for people."""

    subject: str
    author: str
    date: str  # ISO 8601, when it was committed
    parents: tuple[str, ...]


@dataclass(frozen=True)
class Repository:
    """A clone on this machine, bare or not. InfrastructureError when git fails.

    Objects that a partial clone lacks are not fetched: a file's hash is known without them, its text is not.
    """

    path: Path

    def history(self, old: str, new: str, *, first_parent: bool = False) -> History:
        """Return the commits that are reachable from `new` and not from `old`, each after its parents."""
        options = ["--first-parent"] if first_parent else []
        lines = git.output(
            self.path, "rev-list", "--topo-order", "--reverse", "--parents", *options, new, f"^{old}"
        ).splitlines()
        parents = {commit: tuple(others) for commit, *others in map(str.split, lines)}
        if first_parent:
            parents = {commit: others[:1] for commit, others in parents.items()}
        return History(points=tuple(parents), parents=parents)

    def is_ancestor(self, old: str, new: str) -> bool:
        return git.run(self.path, "merge-base", "--is-ancestor", old, new).returncode == 0

    def merge_bases(self, one: str, other: str) -> tuple[str, ...]:
        """Return the best common ancestors; none when the histories have nothing in common."""
        return tuple(git.run(self.path, "merge-base", "--all", one, other).stdout.split())

    def between(self, old: str, new: str) -> tuple[int, int]:
        """Return how many commits are reachable from `new` and not from `old`, and the other way round."""
        removed, added = git.output(self.path, "rev-list", "--left-right", "--count", f"{old}...{new}").split()
        return int(added), int(removed)

    def about(self, commit: str) -> About:
        form = "%x00".join(("%s", "%an", "%cI", "%P"))  # no text of a commit can contain NUL, and any can be empty
        shown = git.output(self.path, "show", "--no-patch", f"--format={form}", commit)
        subject, author, date, parents = shown.removesuffix("\n").split("\0")
        return About(subject=subject, author=author, date=date, parents=tuple(parents.split()))

    def objects(self, names: Iterable[str]) -> dict[str, str]:
        """Return the hash of each object, named as in `<commit>:<path>` or `<commit>^{tree}`; empty where there is
        none.
        """
        requested = list(dict.fromkeys(names))
        if self._is_partial():  # where git would fail for the first file that is not here
            in_trees = {name: self._in_tree(name) for name in requested if ":" in name}
            requested = [name for name in requested if name not in in_trees]
        else:
            in_trees = {}
        answer = git.output(
            self.path,
            "cat-file",
            "--batch-check=%(objectname) %(objecttype)",
            stdin="".join(f"{name}\n" for name in requested),
        )
        known = (line.split()[0] if not line.endswith(" missing") else "" for line in answer.splitlines())
        return {**dict(zip(requested, known, strict=True)), **in_trees}

    def _is_partial(self) -> bool:
        names = r"^(extensions\.partialclone|remote\..*\.promisor)$"
        return git.run(self.path, "config", "--get-regexp", names).returncode == 0

    def _in_tree(self, name: str) -> str:
        """Return the hash of `<commit>:<path>` according to the commit's trees; empty where these have none."""
        commit, _, path = name.partition(":")
        entry = git.output(self.path, "ls-tree", "-z", "--full-tree", commit, "--", path)
        return entry.partition("\t")[0].split()[-1] if entry else ""

    def contents(self, commits: Sequence[str], paths: Sequence[str]) -> dict[str, str]:
        """Return a text per commit; two texts are equal if and only if the contents of the paths are."""
        names = [[f"{commit}:{path}" for path in paths] for commit in commits]
        known = self.objects(name for of_commit in names for name in of_commit)
        return {commit: " ".join(known[name] for name in of_commit) for commit, of_commit in zip(commits, names)}

    def changed(self, old: str, new: str) -> tuple[str, ...]:
        """Paths that differ between two commits; a submodule is one path."""
        return tuple(git.output(self.path, "diff", "--name-only", "-z", old, new).split("\0")[:-1])

    def submodules(self, commit: str) -> dict[str, str]:
        """Path -> commit of the submodule there."""
        lines = git.output(self.path, "ls-tree", "-r", "-z", commit).split("\0")[:-1]
        entries = (line.partition("\t") for line in lines if line.startswith("160000 "))
        return {path: facts.split()[2] for facts, _, path in entries}

    def text(self, commit: str, path: str) -> str:
        """Return the text of a file of a commit; empty when there is none."""
        name = f"{commit}:{path}"
        done = git.run(self.path, "show", name)
        if done.returncode == 0:
            return done.stdout
        if self.objects([name])[name]:
            raise InfrastructureError(
                f"{self.path} is a partial clone without {path} of {commit}: fetch it, or clone all"
            )
        return ""

    def files(self, commit: str, *folders: str) -> tuple[str, ...]:
        """Paths of a commit's files directly in these folders, or in its root; not below them."""
        return tuple(git.output(self.path, "ls-tree", "-z", "--name-only", commit, *folders).split("\0")[:-1])

    def has(self, commit: str) -> bool:
        return git.run(self.path, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0


@dataclass(frozen=True, kw_only=True)
class History:
    """The points that may be the change, each after its parents; the last is the new end.

    `parents` may name points outside; these and all their ancestors are old.
    """

    points: tuple[str, ...]
    parents: Mapping[str, tuple[str, ...]]
