"""The cache of environments and checkouts of stacks, with a lock for each entry."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.infra import screen
from harness.infra.files import expanded
from harness.runs.lock import UNSUPPORTED, unlocked

FOLDER_VARIABLE = "HARNESS_STACKS"


def folder() -> Path:
    """Return HARNESS_STACKS, else packing-harness/stacks in the user's cache folder.

    All nodes of a cluster must see it.
    """
    chosen = os.environ.get(FOLDER_VARIABLE)
    if chosen:
        return expanded(chosen).resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache).resolve() / "packing-harness" / "stacks"


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of the entry at `target`; wait while another process holds it. The kernel releases it at exit."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            screen.err(f"harness: {unlocked(target.parent)}")
        yield
