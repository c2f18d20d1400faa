"""Git worktrees of the commits that stacks name: resolved to a full hash, made once, never half, never changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from harness.edge.cache import folder, locked
from harness.edge.stack_build import Say
from harness.plan.stacks import is_url
from harness.words.errors import InfrastructureError, InputError
from harness.words.stack import Checkout

GIT_TIMEOUT_S = 1800.0
LOG_LINES = 20


def repository_of(checkout: Checkout, *, fetch: bool) -> Path:
    """The repository itself, or this machine's mirror of a URL. `fetch`: make the mirror, or bring it up to date."""
    if not is_url(checkout.repository):
        path = Path(checkout.repository)
        if not path.exists():
            raise InputError(f"no git repository at {path}")
        return path
    mirror = _mirror_place(checkout)
    if fetch:
        with locked(mirror):
            _mirror(checkout, mirror)
    return mirror


def repository_place(checkout: Checkout) -> Path | None:
    """Where the mirror of a URL lies, or would lie; None for a repository of this machine."""
    return _mirror_place(checkout) if is_url(checkout.repository) else None


def _mirror_place(checkout: Checkout) -> Path:
    digest = hashlib.sha256(checkout.repository.encode()).hexdigest()[:16]
    return folder() / "mirrors" / f"{checkout.package}-{digest}.git"


def _mirror(checkout: Checkout, mirror: Path) -> None:
    if mirror.exists():
        if _commit(mirror, checkout.ref) is None:
            _git(mirror, "fetch", "--quiet", "--prune", "--tags", "origin")
        return
    temporary = mirror.with_name(f".{mirror.name}.{os.getpid()}.tmp")
    try:
        _git(mirror.parent, "clone", "--quiet", "--mirror", "--", checkout.repository, str(temporary))
        temporary.rename(mirror)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def commit_of(checkout: Checkout, *, fetch: bool) -> str:
    """The full hash of the commit; InputError when the repository has no such ref, or is not there."""
    repository = repository_of(checkout, fetch=fetch)
    commit = _commit(repository, checkout.ref) if repository.exists() else None
    if commit is None:
        raise InputError(f"{checkout.repository} has no commit, tag or branch {checkout.ref!r}")
    return commit


def _commit(repository: Path, ref: str) -> str | None:
    for name in (ref, f"refs/remotes/origin/{ref}"):
        argv = [
            "git",
            "-C",
            str(repository),
            "rev-parse",
            "--verify",
            "--quiet",
            "--end-of-options",
            f"{name}^{{commit}}",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=_environment())
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip().splitlines()[-1]
    return None


def place_of(checkout: Checkout, commit: str) -> Path:
    """Where the worktree of a commit lies, or would lie; another repository has a place of its own."""
    digest = hashlib.sha256(checkout.repository.encode()).hexdigest()[:8]
    return folder() / "checkouts" / f"{checkout.package}-{commit[:12]}-{digest}"


def is_made(place: Path) -> bool:
    return (place / ".git").exists()


def make(checkout: Checkout, commit: str, say: Say) -> Path:
    """The worktree of a commit, made unless it is there; InfrastructureError when it cannot be, or was changed."""
    place = place_of(checkout, commit)
    with locked(place):
        if not is_made(place):
            say(f"checking out {checkout.package} at {checkout.ref} ({commit[:12]})")
            _add(repository_of(checkout, fetch=False), commit, place)
    _check_unchanged(place, commit)
    return place


def _add(repository: Path, commit: str, place: Path) -> None:
    """Under a temporary name and moved there, so that a worktree at its place is whole."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    for left in (place, *place.parent.glob(f".{place.name}.*.tmp")):  # by a maker that was killed
        shutil.rmtree(left, ignore_errors=True)
    try:
        _git(repository, "worktree", "prune")
        _git(repository, "worktree", "add", "--quiet", "--force", "--detach", str(temporary), commit)
        _git(repository, "worktree", "move", str(temporary), str(place))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_unchanged(place: Path, commit: str) -> None:
    head = _git(place, "rev-parse", "HEAD").strip()
    changed = _git(place, "status", "--porcelain", "--untracked-files=no").strip()
    if head != commit or changed:
        what = f"its commit is {head}" if head != commit else f"files differ:\n{changed[:500]}"
        raise InfrastructureError(f"{place} is no longer commit {commit}: {what}\nRemove it: rm -r {place}")


def _git(repository: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(repository), *arguments]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_S,
            env=_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"git {arguments[0]} did not end well: {error}") from error
    if done.returncode:
        end = "\n".join((done.stderr or done.stdout).strip().splitlines()[-LOG_LINES:])
        raise InfrastructureError(f"git {' '.join(arguments[:2])} in {repository} failed:\n{end}")
    return done.stdout


def _environment() -> dict[str, str]:
    """Without the variables that would lead git to another repository (git sets them for its hooks)."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    }
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}
