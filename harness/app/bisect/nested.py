"""What the commits of a repository pin: the commit of a submodule, or the release of a package."""

from __future__ import annotations

import configparser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.stack import Checkout, Stack
from harness.infra.git_history import Repository
from harness.infra.stacks.checkout import repository_of
from harness.plan.stacks.bisection_cells import Subject, pinned_release, project_of
from harness.plan.stacks.recipes import PROJECTS
from harness.plan.stacks.section import distribution

_FILES = ("pyproject.toml", "setup.cfg", "setup.py")


@dataclass(frozen=True, kw_only=True)
class Pins:
    """A submodule or a package that the commits of the outer repository pin."""

    outer: Repository
    name: str  # path of a submodule, or a distribution
    subject: Subject  # what is pinned

    def with_outer(self, outer: Subject) -> Callable[[Stack, str], Stack]:
        """A function that moves a stack to a commit of the outer repository and to what that commit pins."""
        return lambda stack, commit: self.subject.at(outer.at(stack, commit), self.of(commit))

    def of(self, commit: str) -> str:
        """The pinned commit or release; InputError when there is none."""
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
    """The pins called `name`: the path of a submodule at the commit, else a package that a requirement pins."""
    submodules = outer.submodules(commit)
    if name not in submodules:
        found = Pins(outer=outer, name=distribution(name) or name, subject=Subject(name=distribution(name) or name))
        try:
            found.of(commit)
        except InputError as error:
            allowed = ", ".join([*submodules, "a package that its requirements pin with =="])
            raise InputError(Problem(key="--nested", message=f"the commits pin no {name}", allowed=allowed)) from error
        return found
    at = submodules[name]
    clone = _clone_of(outer, name, commit, at)
    inner = Repository(repository_of(Checkout(package="nested", repository=clone, ref=at), fetch=True))
    project = project_of(lambda path: bool(inner.objects([f"{at}:{path}"])[f"{at}:{path}"]))
    if project is None:
        allowed = ", ".join(PROJECTS)
        raise InputError(
            Problem(key="--nested", message=f"{name} holds none of the projects that stacks check out", allowed=allowed)
        )
    return Pins(outer=outer, name=name, subject=Subject(name=project, repository=clone))


def _clone_of(outer: Repository, path: str, commit: str, pin: str) -> str:
    """A clone of the submodule that has the pin: in the working tree or in .git/modules; else the submodule's URL."""
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
    """Paths of the files that may state the requirements of the commit."""
    root = outer.files(commit)
    found = [name for name in root if name in _FILES or (name.startswith("requirements") and name.endswith(".txt"))]
    return found + [name for name in outer.files(commit, "requirements/") if name.endswith(".txt")]
