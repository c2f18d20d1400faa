"""Temporary worktrees, such as those of the commits that a bisection judges.

A file next to such a worktree lists its users; the worktree is removed when the last one releases it. A worktree
without that file is kept. The file is read and written under the worktree's lock, and outlives the process that wrote
it, as the jobs of a cluster do.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from harness.core.run.run_dir import write_atomic
from harness.infra.stacks.artifact_store import folder, locked

FORGOTTEN_S = 30 * 86400.0  # after this time a user that has not released its worktree no longer counts
_NOTE = ".users"


def note_user(place: Path, user: str, *, is_new: bool) -> None:
    """Add a user; an empty one marks the worktree as kept. The caller holds the lock of `place`.

    An existing worktree without users stays kept.
    """
    note = _note(place)
    if not user:
        note.unlink(missing_ok=True)
    elif is_new or note.exists():
        _write(note, (*_users(note), user))


def release(user: str, packages: tuple[str, ...] | None = None) -> list[Path]:
    """Release the worktrees of `user`, and remove those that have no other user. `packages`: of these projects only.

    Returns the removed ones, also those that were not released for FORGOTTEN_S.
    """
    removed = []
    for note in sorted((folder() / "checkouts").glob(f".*{_NOTE}")):
        place = note.with_name(note.name[1 : -len(_NOTE)])
        wanted = packages is None or any(
            re.match(rf"{re.escape(name)}-[0-9a-f]{{12}}-", place.name) for name in packages
        )
        if wanted and (user in _users(note) or _is_forgotten(note)):
            with locked(place):
                removed += [place] if _release(place, user) else []
    return removed


def _release(place: Path, user: str) -> bool:
    """Release one worktree; returns whether it was removed. The caller holds its lock."""
    note = _note(place)
    users = _users(note)
    if not users:  # it was marked as kept in the meantime
        return False
    left = [one for one in users if one != user]
    if left and not _is_forgotten(note):
        _write(note, left)
        return False
    _remove(place)
    note.unlink()
    return True


def _remove(place: Path) -> None:
    """Renames the worktree first, so that no partly removed one is at its place; then removes git's record."""
    link = place / ".git"
    if not link.exists():
        return
    known = place / link.read_text(encoding="utf-8").strip().removeprefix("gitdir: ")
    aside = place.with_name(f".{place.name}.removed.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    place.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    place.with_name(f"{place.name}.tree").unlink(missing_ok=True)  # see checkout.py
    if known.parent.name == "worktrees":
        shutil.rmtree(known, ignore_errors=True)


def _note(place: Path) -> Path:
    return place.with_name(f".{place.name}{_NOTE}")


def _users(note: Path) -> list[str]:
    """Empty when there is no such file."""
    try:
        return note.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def _write(note: Path, users: Iterable[str]) -> None:
    write_atomic(note, "".join(f"{one}\n" for one in dict.fromkeys(users)))


def _is_forgotten(note: Path) -> bool:
    try:
        return time.time() - note.stat().st_mtime > FORGOTTEN_S
    except FileNotFoundError:
        return False
