"""The points of a bisection: the commits of a repository, or the releases of a package.

Commits may pin a submodule or the release of a package, whose points are searched next.
"""

from __future__ import annotations

import configparser
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.stack import Checkout, Stack
from harness.infra.files import expanded
from harness.infra.git import repository_names
from harness.infra.git_history import History, Repository
from harness.launch.stacks import build
from harness.launch.stacks.checkout import commit_of, repository_of
from harness.matrix.stacks.bisection_cells import Subject, pinned_release
from harness.matrix.stacks.section import distribution, is_url
from harness.reporting.bisection import Change, End, PointKind, short
from harness.triage.bisect.search import simplified
from harness.upstreams.table import PROJECTS, project_of

_MANIFESTS = ("pyproject.toml", "setup.cfg", "setup.py")


@dataclass(frozen=True, kw_only=True)
class Commits:
    """Commits of a clone."""

    subject: Subject
    old: End
    new: End
    history: History  # the commits after the old end; the new end is the last
    # Merge bases of the ends, judged like the old end; empty where the old end is an ancestor of the new one.
    bases: tuple[str, ...]
    repository: Repository
    same: dict[str, str] = field(default_factory=dict)  # point -> point with the same content below --paths
    kind: PointKind = PointKind.COMMIT

    def stands_for(self, point: str) -> str:
        """Return the point whose verdict this one shares; usually the point itself."""
        return self.same.get(point, point)

    def label(self, point: str) -> str:
        """Return the point as part of a stack's name."""
        return short(point, PointKind.COMMIT)

    def code(self, points: Iterable[str]) -> dict[str, str]:
        """Return point -> id of its code, part of the key of its kept verdicts."""
        names = list(points)
        trees = self.repository.objects(f"{name}^{{tree}}" for name in names)
        return {name: trees[f"{name}^{{tree}}"] for name in names}

    def about(self, point: str) -> tuple[Change, tuple[str, ...]]:
        """Return a description of a point, and its parents."""
        known = self.repository.about(point)
        return Change(name=point, subject=known.subject, author=known.author, date=known.date), known.parents


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Releases of a distribution, oldest first."""

    subject: Subject
    old: End
    new: End
    history: History
    bases: tuple[str, ...] = ()
    kind: PointKind = PointKind.RELEASE

    def stands_for(self, point: str) -> str:
        """Return the release itself: no two releases share a verdict."""
        return point

    def label(self, point: str) -> str:
        """Return the release as part of a stack's name."""
        return point

    def code(self, points: Iterable[str]) -> dict[str, str]:
        """Return release -> requirement, part of the key of its kept verdicts."""
        return {name: f"{self.subject.name}=={name}" for name in points}

    def about(self, point: str) -> tuple[Change, tuple[str, ...]]:
        """Return a description of a release, and the one before it."""
        return Change(name=point), self.history.parents[point]


Source = Commits | Releases


def commits_of(
    place: str,
    old: str,
    new: str,
    *,
    old_option: str,
    new_option: str,
    paths: Sequence[str] = (),
    first_parent: bool,
    setup: str = "",
) -> Commits:
    """Return the commits between two refs of a repository, a path or a URL. InputError for invalid ends."""
    place = place if is_url(place) else str(expanded(place).resolve())
    checkout = Checkout(package="bisected", repository=place, ref=old)
    ends = [
        End(requested=ref, name=_resolved(place, ref, option)) for ref, option in ((old, old_option), (new, new_option))
    ]
    repository = Repository(repository_of(checkout, fetch=False))
    before, after = ends[0].name, ends[1].name
    bases = _bases(repository, before, after, old_option, new_option)
    project = project_of(
        lambda path: bool(repository.objects([f"{after}:{path}"])[f"{after}:{path}"]), repository_names(place)
    )
    if project is None:
        allowed = ", ".join(PROJECTS)
        raise InputError(
            Problem(
                key="--repo", message="holds none of the projects that stacks check out", found=place, allowed=allowed
            )
        )
    history = repository.history(before, after, first_parent=first_parent)
    same: dict[str, str] = {}
    if paths:
        history, same = _of_paths(repository, history, before, after, paths)
    return Commits(
        subject=Subject(name=project.name, repository=place, setup=setup),
        old=ends[0],
        new=ends[1],
        history=history,
        bases=tuple(base for base in bases if base != before),
        repository=repository,
        same=same,
    )


def _resolved(place: str, ref: str, option: str) -> str:
    try:
        return commit_of(Checkout(package="bisected", repository=place, ref=ref), fetch=True)
    except InputError as error:
        raise InputError(Problem(key=option, message=str(error))) from error


def _bases(repository: Repository, old: str, new: str, old_option: str, new_option: str) -> tuple[str, ...]:
    if old == new:
        raise InputError(
            Problem(
                key=new_option, message=f"names the same commit as {old_option}", found=short(new, PointKind.COMMIT)
            )
        )
    if repository.is_ancestor(new, old):
        raise InputError(_wrong_way(old_option, new_option))
    bases = repository.merge_bases(old, new)
    if not bases:
        raise InputError(Problem(key=new_option, message=f"has no history in common with {old_option}"))
    return bases


def _wrong_way(old_option: str, new_option: str) -> Problem:
    find = "fixed" if old_option == "--good" else "introduced"
    message = f"is older than {old_option}, so the change goes the other way than --find says"
    return Problem(key=new_option, message=message, hint=f"add --find {find}, or swap the ends")


def _of_paths(
    repository: Repository, history: History, old: str, new: str, paths: Sequence[str]
) -> tuple[History, dict[str, str]]:
    missing = [path for path in paths if not any(repository.contents([old, new], [path]).values())]
    if missing:
        raise InputError(Problem(key="--paths", message="neither end has these paths", found=", ".join(missing)))
    around = {parent for parents in history.parents.values() for parent in parents}
    content = repository.contents(sorted({*history.points, *around}), list(paths))
    small, same = simplified(history, content)
    if not small.points:
        message = "no commit between the ends touches these paths"
        raise InputError(Problem(key="--paths", message=message, found=", ".join(paths)))
    return small, same


def releases_of(package: str, old: str, new: str, *, old_option: str, new_option: str, pre: bool) -> Releases:
    """Return the releases of a package between two of them. InputError for invalid ends."""
    name = distribution(package)
    if not name:
        raise InputError(Problem(key="--package", message="must be the name of a package", found=repr(package)))
    if old == new:
        raise InputError(Problem(key=new_option, message=f"names the same release as {old_option}", found=new))
    if build.is_older_release(name, new, old):
        raise InputError(_wrong_way(old_option, new_option))
    points = build.releases_between(name, old, new, pre=pre)
    parents = {point: (before,) for point, before in zip(points, (old, *points))}
    return Releases(
        subject=Subject(name=name),
        old=End(requested=old, name=old),
        new=End(requested=new, name=new),
        history=History(points=points, parents=parents),
    )


@dataclass(frozen=True, kw_only=True)
class Pins:
    """A submodule or a package that the commits of the outer repository pin."""

    outer: Repository
    name: str  # path of a submodule, or a distribution
    subject: Subject  # what is pinned

    def with_outer(self, outer: Subject) -> Callable[[Stack, str], Stack]:
        """Return a function that moves a stack to a commit of the outer repository and to what that commit pins."""
        return lambda stack, commit: self.subject.at(outer.at(stack, commit), self.of(commit))

    def of(self, commit: str) -> str:
        """Return the pinned commit or release; InputError when there is none."""
        if self.subject.of_releases:
            pin = pinned_release(
                "\n".join(self.outer.text(commit, path) for path in _manifests(self.outer, commit)), self.name
            )
        else:
            pin = self.outer.submodules(commit).get(self.name, "")
        if not pin:
            raise InputError(Problem(key="--nested", message=f"commit {commit[:12]} pins no {self.name}"))
        return pin


def pins_of(outer: Repository, name: str, commit: str) -> Pins:
    """Return the pins called `name`: the path of a submodule at the commit, else a package that a requirement pins."""
    submodules = outer.submodules(commit)
    if name not in submodules:
        pins = Pins(outer=outer, name=distribution(name) or name, subject=Subject(name=distribution(name) or name))
        try:
            pins.of(commit)
        except InputError as error:
            allowed = ", ".join([*submodules, "a package that its requirements pin with =="])
            raise InputError(Problem(key="--nested", message=f"the commits pin no {name}", allowed=allowed)) from error
        return pins
    at = submodules[name]
    clone = _clone_of(outer, name, commit, at)
    inner = Repository(repository_of(Checkout(package="nested", repository=clone, ref=at), fetch=True))
    project = project_of(lambda path: bool(inner.objects([f"{at}:{path}"])[f"{at}:{path}"]), repository_names(clone))
    if project is None:
        allowed = ", ".join(PROJECTS)
        raise InputError(
            Problem(key="--nested", message=f"{name} holds none of the projects that stacks check out", allowed=allowed)
        )
    return Pins(outer=outer, name=name, subject=Subject(name=project.name, repository=clone))


def _clone_of(outer: Repository, path: str, commit: str, pin: str) -> str:
    """Return a clone of the submodule that has the pin: in the tree or in .git/modules; else the submodule's URL."""
    settings = configparser.ConfigParser()
    settings.read_string("\n".join(line.strip() for line in outer.text(commit, ".gitmodules").splitlines()))
    sections = [section for section in settings.sections() if settings[section].get("path") == path]
    names = [section.removeprefix('submodule "').removesuffix('"') for section in sections]
    for clone in (outer.path / path, *(outer.path / ".git" / "modules" / name for name in (*names, path))):
        if ((clone / ".git").exists() or (clone / "HEAD").exists()) and Repository(clone).has(pin):
            return str(clone.resolve())
    url = settings[sections[0]].get("url", "") if sections else ""
    if url.startswith((".", "/")):
        url = str((outer.path / Path(url)).resolve())
    if not url:
        hint = "git submodule update --init"
        raise InputError(Problem(key="--nested", message=f"no clone of {path} has commit {pin[:12]}", hint=hint))
    return url


def _manifests(outer: Repository, commit: str) -> list[str]:
    """Return paths of the files that may state the requirements of the commit."""
    root = outer.files(commit)
    manifests = [
        name for name in root if name in _MANIFESTS or (name.startswith("requirements") and name.endswith(".txt"))
    ]
    return manifests + [name for name in outer.files(commit, "requirements/") if name.endswith(".txt")]
