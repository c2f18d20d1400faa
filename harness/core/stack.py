"""The software under test of a cell: as a matrix defines it, and as it was installed on this machine."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace

from harness.core.serialization import dumps

DEFAULT = "default"  # the environment that the harness itself runs in; no matrix defines it
SAFE_NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"  # for file names and commands
_RELEASE = re.compile(r"(?:megatron-)?([a-z0-9-]+)==([A-Za-z0-9.]+)")
_HASH_DIGITS = 40  # of a full commit hash


def safe_name(value: str) -> str:
    """Return the name itself; ValueError if it cannot be used in a file name or a command."""
    if not re.fullmatch(SAFE_NAME, value):
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit")
    return value


def stack_name(value: str) -> str:
    """Return the name of a stack; that of a release may be written as pip does: megatron-core==0.19.2 is
    core-0.19.2.
    """
    release = _RELEASE.fullmatch(value)
    return safe_name("-".join(release.groups()) if release else value)


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A project's code at a ref of a git repository."""

    package: str  # a key of harness.upstreams.table.PROJECTS
    repository: str  # absolute path, or URL
    ref: str  # commit, tag or branch; empty: the repository's working tree, with its changes
    revert: tuple[str, ...] = ()  # commits to revert on it, in this order
    setup: str = ""  # command to run once in the worktree, e.g. to build an extension


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack as its layers define it. At most one of packages (with python), interpreter and container."""

    name: str
    packages: tuple[str, ...] = ()  # requirements, e.g. "megatron-core==0.17.1"
    no_deps: tuple[str, ...] = ()  # requirements installed without their dependencies
    python: str = ""  # Python version of the environment for `packages`, e.g. "3.12"; empty: chosen by rule
    interpreter: str = ""  # of an existing environment
    container: str = ""  # image
    checkouts: tuple[Checkout, ...] = ()  # in the order of the module search path
    env: dict[str, str] = field(default_factory=dict)


def content_of(stack: Stack) -> str:
    """Return the definition as text; stacks with the same text are the same, whatever their names."""
    return dumps(replace(stack, name=""))


def digest(stack: Stack) -> str:
    """Sixteen hex digits that identify the definition, whatever the stack's name."""
    return hashlib.sha256(content_of(stack).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class ModuleHome:
    """Where modules must come from: `prefix` and its submodules; an empty prefix means every other module."""

    prefix: str
    folders: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Version:
    """The version of a distribution or a module."""

    name: str
    version: str

    @property
    def text(self) -> str:
        """E.g. "megatron.core 0.17.1"."""
        return f"{self.name} {self.version}"


@dataclass(frozen=True, kw_only=True)
class CheckedOut:
    """The state of a checkout in a run."""

    project: str
    ref: str  # empty: the repository's working tree
    commit: str  # as in ReadyStack.commits; empty: unknown
    reverted: tuple[str, ...]  # full hashes; the matrix's names if the stack could not be made
    repository: str

    def text(self, digits: int = _HASH_DIGITS) -> str:
        """Return e.g. "megatron-lm main = 1a2b without 3c4d, 5e6f"; full hashes are cut to `digits`."""
        ref, commit, *reverted = (_cut(name, digits) for name in (self.ref, self.commit, *self.reverted))
        without = f" without {', '.join(reverted)}" if reverted else ""
        return f"{self.project} {ref or 'working tree'} = {commit or 'unknown'}{without}"


def _cut(name: str, digits: int) -> str:
    """Return the name, with a full hash at its start cut to `digits`."""
    return name[:digits] + name[_HASH_DIGITS:] if re.match(rf"[0-9a-f]{{{_HASH_DIGITS}}}\b", name) else name


@dataclass(frozen=True, kw_only=True)
class StackFacts:
    """A stack in the provenance of a report: what the matrix requests, and what was installed."""

    requested: tuple[str, ...] = ()  # requirements
    checkouts: tuple[CheckedOut, ...] = ()
    container: str = ""  # image
    interpreter: str = ""
    python: str = ""  # version; empty: unknown
    # Not a mapping: redaction would take a key like google-auth for the name of a secret, and hide the version.
    packages: tuple[Version, ...] = ()  # every installed distribution; empty for a container
    env: dict[str, str] = field(default_factory=dict)  # a mapping: redaction hides values by their names
    error: str = ""  # why the stack cannot be used

    @property
    def commits(self) -> dict[str, str]:
        """Project -> commit, if known."""
        return {item.project: item.commit for item in self.checkouts if item.commit}

    @property
    def versions(self) -> dict[str, str]:
        """Distribution -> version."""
        return {item.name: item.version for item in self.packages}


@dataclass(frozen=True, kw_only=True)
class ReadyStack:
    """A stack on this machine: how agents are started in it, and what is installed."""

    requested: Stack
    python: str = ""  # interpreter that runs the agents
    paths: tuple[str, ...] = ()  # put first on the module search path
    homes: tuple[ModuleHome, ...] = ()
    python_version: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # every installed distribution -> version
    # project -> full hash of its commit, followed by "+changes." and a digest if the working tree has changes
    commits: dict[str, str] = field(default_factory=dict)
    # project -> full hashes of the commits reverted on it
    reverted: dict[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""  # why it could not be made, or why the probe cannot run in it: its cells are ERROR

    @property
    def usable(self) -> bool:
        """Whether agents can be started in it."""
        return not self.error

    def facts(self) -> StackFacts:
        """Return the definition and what was installed, for reports."""
        requested = self.requested
        return StackFacts(
            requested=(*requested.packages, *(f"{item} (no dependencies)" for item in requested.no_deps)),
            checkouts=tuple(self._checked_out(item) for item in requested.checkouts),
            container=requested.container,
            interpreter=self.python,
            python=self.python_version,
            packages=tuple(Version(name=name, version=version) for name, version in self.packages.items()),
            env=requested.env,
            error=self.error,
        )

    def _checked_out(self, item: Checkout) -> CheckedOut:
        return CheckedOut(
            project=item.package,
            ref=item.ref,
            commit=self.commits.get(item.package, ""),
            reverted=self.reverted.get(item.package, item.revert),
            repository=item.repository,
        )
