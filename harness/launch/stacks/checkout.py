"""Git worktrees of the commits that stacks name: resolved to a full hash, created once, never changed.

A worktree with commits reverted has the commit itself as its HEAD and the reverts as staged changes.

Some are temporary, such as those of the commits that a bisection judges. A file next to such a worktree lists its
users; the worktree is removed when the last one releases it. A worktree without that file is kept. The file is read and
written under the worktree's lock, and outlives the process that wrote it, as the jobs of a cluster do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from harness.core.errors import InfrastructureError, InputError, NotRevertibleError, Problem
from harness.core.run.run_dir import write_atomic
from harness.core.stack import Checkout
from harness.infra import git
from harness.infra.files import is_folder
from harness.launch.stacks.artifact_store import folder, locked
from harness.launch.stacks.build import Say
from harness.matrix.stacks.section import is_url
from harness.upstreams.table import PROJECTS

_PLAIN_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--full-index", "--binary")
_NOT_INSIDE = ("--ignore-submodules=dirty",)  # a submodule's commit is compared, its files are not
FORGOTTEN_S = 30 * 86400.0  # after this time a user that has not released its worktree no longer counts
_USERS = ".users"
_ELSEWHERE = (
    "start the command inside a checkout of it, or of another project of `harness list projects`, or name one under "
    "`stacks:` of the matrix: {checkout: PATH, package: NAME}"
)


def repository_of(checkout: Checkout, *, fetch: bool) -> Path:
    """Return the repository itself, or the local mirror of a URL. `fetch`: create or update the mirror."""
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


def remote_of(checkout: Checkout) -> str:
    """Return the URL that a repository was cloned from, followed through local clones; empty when there is none.

    Credentials in the URL are removed.
    """
    place, visited = checkout.repository, set[str]()
    while place and not is_url(place) and place not in visited:
        visited.add(place)
        done = git.run(Path(place), "remote", "get-url", "origin")
        place = done.stdout.strip() if done.returncode == 0 else ""
    return git.without_credentials(place) if is_url(place) else ""


def repository_place(checkout: Checkout) -> Path | None:
    """Return where the mirror of a URL is, or would be; None for a local repository."""
    return _mirror_place(checkout) if is_url(checkout.repository) else None


def own_copy(checkout: Checkout, commit: str, reverted: tuple[str, ...] = ()) -> Path | None:
    """Return the mirror of a URL, or the worktree of a local repository's commit, that this machine has made.

    Nothing else: a checkout from the files of a run may name anything.
    """
    mirror = repository_place(checkout)
    place, parent = (mirror, "mirrors") if mirror else (place_of(checkout, commit, reverted), "checkouts")
    return place if place.parent == folder() / parent and is_folder(place) else None


def _mirror_place(checkout: Checkout) -> Path:
    digest = hashlib.sha256(checkout.repository.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return folder() / "mirrors" / f"{checkout.package}-{digest}.git"


def _mirror(checkout: Checkout, mirror: Path) -> None:
    if mirror.exists():
        if None in [_commit(mirror, ref) for ref in (checkout.ref, *checkout.revert)]:
            git.output(mirror, "fetch", "--quiet", "--prune", "--tags", "origin")
        return
    temporary = mirror.with_name(f".{mirror.name}.{os.getpid()}.tmp")
    try:
        git.output(mirror.parent, "clone", "--quiet", "--mirror", "--", checkout.repository, str(temporary))
        temporary.rename(mirror)
    except InfrastructureError as error:
        url = git.without_credentials(checkout.repository)
        hint = f"without a network, say where a clone is: git config --global url./path/to/clone.insteadOf {url}"
        raise InfrastructureError(f"{error}\n{hint}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def renew(checkout: Checkout) -> None:
    """Fetch the mirror of a URL if the ref is one of its branches; without a network, the mirror stays as it is."""
    mirror = repository_place(checkout)
    if mirror is None or not is_folder(mirror):
        return
    if git.run(mirror, "show-ref", "--verify", "--quiet", f"refs/heads/{checkout.ref}").returncode == 0:
        with locked(mirror), suppress(InfrastructureError):
            git.output(mirror, "fetch", "--quiet", "--prune", "--tags", "origin")


def commit_of(checkout: Checkout, *, fetch: bool) -> str:
    """Return the full hash of the commit; InputError when the repository has no such ref, or does not exist."""
    repository = repository_of(checkout, fetch=fetch)
    commit = _commit(repository, checkout.ref or "HEAD") if repository.exists() else None
    if commit is None and (why := why_other(checkout)):
        raise InputError(Problem(message=why, hint=_ELSEWHERE))
    if commit is None and not checkout.ref:
        raise InputError(
            Problem(
                message=f"{checkout.repository} has {PROJECTS[checkout.package].title}, but no commit of it",
                hint=f"only a git checkout can be under test, since a report names its commit; {_ELSEWHERE}",
            )
        )
    if commit is None:
        raise InputError(f"{checkout.repository} has no commit, tag or branch {checkout.ref or 'HEAD'!r}")
    return commit


def why_other(checkout: Checkout) -> str:
    """Return why a working tree cannot be one of the project; empty for one that can, and for a commit."""
    if checkout.ref:
        return ""
    signs = PROJECTS[checkout.package].signs
    if any((Path(checkout.repository) / sign).exists() for sign in signs):
        return ""
    return f"{checkout.repository} is no working tree of {checkout.package}: it has no {signs[0]}"


def _commit(repository: Path, ref: str) -> str | None:
    for name in (ref, f"refs/remotes/origin/{ref}"):
        done = git.run(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip().splitlines()[-1]
    return None


def reverted_of(checkout: Checkout, commit: str) -> tuple[str, ...]:
    """Return the full hashes of the commits to revert at `commit`; InputError naming each that cannot be reverted."""
    repository = repository_of(checkout, fetch=False)
    hashes: list[str] = []
    problems = []
    for ref in checkout.revert:
        full_hash = _commit(repository, ref)
        if full_hash is None:
            problems.append(Problem(message=f"{checkout.repository} has no commit {ref!r} to revert"))
        elif problem := _why_not(repository, checkout.ref, full_hash, commit, hashes):
            problems.append(replace(problem, message=f"cannot revert {ref}: {problem.message}"))
        else:
            hashes.append(full_hash)
    if problems:
        raise InputError(problems)
    return tuple(hashes)


def _why_not(repository: Path, ref: str, full_hash: str, commit: str, before: list[str]) -> Problem | None:
    """Return why a commit cannot be reverted at `commit`, which `ref` names; None if no reason is known before
    trying.
    """
    if full_hash in before:
        return Problem(message="it is listed twice")
    if git.run(repository, "merge-base", "--is-ancestor", full_hash, commit).returncode:
        hint = "a cherry-picked commit has another hash on that branch"
        return Problem(message=f"it is not in the history of {ref}", hint=hint)
    if len(git.output(repository, "rev-list", "--parents", "--max-count=1", full_hash).split()) > 2:
        return Problem(message="it is a merge", hint="name the commits that it brought in, the newest first")
    return None


def place_of(checkout: Checkout, commit: str, reverted: tuple[str, ...] = ()) -> Path:
    """Return where the worktree of a commit is, or would be.

    It depends on the repository and the reverted commits too.
    """
    if not checkout.ref:
        return Path(checkout.repository)
    digest = hashlib.sha256(checkout.repository.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    without = hashlib.sha256(" ".join(reverted).encode()).hexdigest()[:12]
    name = f"{checkout.package}-{commit[:12]}-{digest}{f'-revert-{without}' if reverted else ''}"
    if checkout.setup:
        name += f"-setup-{hashlib.sha256(checkout.setup.encode()).hexdigest()[:12]}"
    return folder() / "checkouts" / name


def is_made(place: Path) -> bool:
    """Return whether a worktree is there; it is moved to its place only when complete."""
    return (place / ".git").exists()


def changes_of(place: Path) -> str:
    """Return the digest of a working tree's changes to its commit, eight hex digits; empty when there are none.

    Untracked files are left out: a folder of data may have any size. Submodules are read one by one: git would apply
    the settings of each.
    """
    changed = git.output(place, "diff", *_PLAIN_DIFF, *_NOT_INSIDE, "HEAD")
    entries = git.output(place, "ls-files", "--stage", "-z").split("\0")[:-1]
    for path in (entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")):
        inside = changes_of(place / path) if is_made(place / path) else ""
        changed += f"{path}: {inside}\n" if inside else ""
    return hashlib.sha256(changed.encode("utf-8", "surrogatepass")).hexdigest()[:8] if changed else ""


def code_at(checkout: Checkout, commit: str, place: Path) -> str:
    """Return the commit; for a working tree used in place, also a digest of its changes: "<hash>+changes.1a2b3c4d"."""
    changes = "" if checkout.ref else changes_of(place)
    return f"{commit}+changes.{changes}" if changes else commit


def named(checkout: Checkout) -> str:
    """Return the checkout, for messages."""
    without = f" without {', '.join(checkout.revert)}" if checkout.revert else ""
    return f"{checkout.package} at {checkout.ref}{without}" if checkout.ref else f"{checkout.package} working tree"


def make(checkout: Checkout, commit: str, say: Say, reverted: tuple[str, ...] = (), user: str = "") -> Path:
    """Return the worktree of `commit` with the commits `reverted`, all full hashes; created unless it exists.

    `user`: who needs it until release_worktrees; empty to keep it.

    NotRevertibleError when a commit cannot be reverted; InfrastructureError when the worktree cannot be created, or
    was changed.
    """
    place = place_of(checkout, commit, reverted)
    if not checkout.ref:
        return place
    with locked(place):
        note_user(place, user, is_new=not is_made(place))
        if not is_made(place):
            say(f"checking out {named(checkout)} ({commit[:12]})")
            repository = repository_of(checkout, fetch=False)
            try:
                _add(repository, commit, reverted, place)
            except NotRevertibleError as error:
                git.output(repository, "worktree", "prune")
                raise NotRevertibleError(f"{named(checkout)}: {error}") from error
    _check_unchanged(place, commit)
    return place


def set_up(checkout: Checkout, place: Path, python: str, say: Say) -> None:
    """Run the checkout's setup command in its worktree, once; InfrastructureError with the end of its output."""
    stamp = Path(git.output(place, "rev-parse", "--absolute-git-dir").strip()) / "harness-set-up"
    with locked(place):
        if stamp.exists():
            return
        say(f"setting up {named(checkout)}: {checkout.setup}")
        path = os.pathsep.join((str(Path(python).parent), os.environ.get("PATH", os.defpath)))
        done = subprocess.run(
            ["sh", "-c", checkout.setup],
            cwd=place,
            env={**git.environment(), "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode:
            failed = f"setup of {named(checkout)} ended with exit code {done.returncode}"
            raise InfrastructureError(f"{failed}: {checkout.setup}\n{git.end_of(done)}")
        stamp.touch()


def _add(repository: Path, commit: str, reverted: tuple[str, ...], place: Path) -> None:
    """Create the worktree under a temporary name and move it, so that an existing one is always complete."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    for leftover in (place, *place.parent.glob(f".{place.name}.*.tmp")):  # left by a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        git.output(repository, "worktree", "prune")
        requested = ("--quiet", "--force", "--detach", str(temporary), commit)
        git.output(repository, "worktree", "add", *requested, completing=True)
        for reverted_commit in reverted:
            _revert(temporary, reverted_commit)
        if reverted:
            _tree_file(place).write_text(git.output(temporary, "write-tree"), encoding="utf-8")
        git.output(repository, "worktree", "move", str(temporary), str(place))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _revert(worktree: Path, commit: str) -> None:
    """Revert one commit without committing: git then needs no user name. Conflicts are not recorded (rerere).

    Files under tests/ that conflict stay as they are: they are no code under test.
    """
    before = git.output(worktree, "write-tree").strip()
    done = git.run(worktree, "-c", "rerere.enabled=false", "revert", "--no-commit", commit, completing=True)
    if done.returncode:
        files = git.output(worktree, "diff", "--name-only", "--diff-filter=U").splitlines()
        if not files:
            raise InfrastructureError(f"git revert {commit} failed:\n{git.end_of(done)}")
        if conflicting := [file for file in files if not file.startswith("tests/")]:
            conflict = f"reverting {commit[:12]} conflicts in {', '.join(conflicting)}"
            raise NotRevertibleError(f"{conflict}; first revert the commits that depend on it, the newest first")
        existed = set(git.output(worktree, "ls-tree", "-r", "--name-only", before, "tests").splitlines())
        for file in files:
            restored = ("checkout", "--quiet", before, "--", file) if file in existed else ("rm", "--quiet", "--", file)
            git.output(worktree, *restored)
    if git.output(worktree, "write-tree").strip() == before:
        raise NotRevertibleError(f"reverting {commit[:12]} changes nothing: a later commit has reverted it already")
    git.output(worktree, "revert", "--quit")


def _tree_file(place: Path) -> Path:
    """Return the file next to a worktree with reverts that has the hash of its expected tree."""
    return place.with_name(f"{place.name}.tree")


def _check_unchanged(place: Path, commit: str) -> None:
    head = git.output(place, "rev-parse", "HEAD").strip()
    tree = _tree_file(place)
    expected = tree.read_text(encoding="utf-8").strip() if tree.exists() else commit
    changed = git.output(place, "diff", "--name-only", *_NOT_INSIDE, expected).strip()
    if head != commit or changed:
        what = f"its commit is {head}" if head != commit else f"files differ:\n{changed[:500]}"
        raise InfrastructureError(f"{place} is no longer commit {commit}: {what}\nRemove it: rm -r {place}")


def note_user(place: Path, user: str, *, is_new: bool) -> None:
    """Add a user; an empty one marks the worktree as kept. The caller holds the lock of `place`.

    An existing worktree without users stays kept.
    """
    note = _users_file(place)
    if not user:
        note.unlink(missing_ok=True)
    elif is_new or note.exists():
        _write_users(note, (*_users(note), user))


def release_worktrees(user: str, packages: tuple[str, ...] | None = None) -> list[Path]:
    """Release the worktrees of `user`, and remove those that have no other user. `packages`: of these projects only.

    Returns the removed ones, also those that were not released for FORGOTTEN_S.
    """
    removed = []
    for note in sorted((folder() / "checkouts").glob(f".*{_USERS}")):
        place = note.with_name(note.name[1 : -len(_USERS)])
        is_concerned = packages is None or any(
            re.match(rf"{re.escape(name)}-[0-9a-f]{{12}}-", place.name) for name in packages
        )
        if is_concerned and (user in _users(note) or _is_forgotten(note)):
            with locked(place):
                removed += [place] if _release_worktree(place, user) else []
    return removed


def _release_worktree(place: Path, user: str) -> bool:
    """Release one worktree; return whether it was removed. The caller holds its lock."""
    note = _users_file(place)
    users = _users(note)
    if not users:  # it was marked as kept in the meantime
        return False
    remaining = [name for name in users if name != user]
    if remaining and not _is_forgotten(note):
        _write_users(note, remaining)
        return False
    _remove_worktree(place)
    note.unlink()
    return True


def _remove_worktree(place: Path) -> None:
    """Rename the worktree first, so that no partly removed one is at its place; then removes git's record."""
    link = place / ".git"
    if not link.exists():
        return
    git_record = place / link.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
    aside = place.with_name(f".{place.name}.removed.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    place.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    _tree_file(place).unlink(missing_ok=True)
    if git_record.parent.name == "worktrees":
        shutil.rmtree(git_record, ignore_errors=True)


def _users_file(place: Path) -> Path:
    return place.with_name(f".{place.name}{_USERS}")


def _users(note: Path) -> list[str]:
    """Return the users of a worktree; empty when there is no such file."""
    try:
        return note.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _write_users(note: Path, users: Iterable[str]) -> None:
    write_atomic(note, "".join(f"{user}\n" for user in dict.fromkeys(users)))


def _is_forgotten(note: Path) -> bool:
    try:
        return time.time() - note.stat().st_mtime > FORGOTTEN_S
    except FileNotFoundError:
        return False
