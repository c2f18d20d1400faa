"""Removes secrets that the code under test printed to a log, once nothing writes to the log any more."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from harness.core.run.run_dir import needs_room, opened
from harness.core.text.secrets import redacted


def without_secrets_in(log: Path, values: Collection[str]) -> None:
    """Replace each secret in a log by ***, line by line; a log without secrets is not touched, nor a missing one.

    `values`: secrets known by value, see `secret_values`. Bytes that are not UTF-8 are kept. DiskFullError if there is
    no space for the new log; the old one is then kept.
    """
    try:
        if not _has_secret(log, values):
            return
    except FileNotFoundError:
        return
    temporary = log.with_name(f".{log.name}.{os.getpid()}.tmp")
    with needs_room(log):
        try:
            with opened(log) as old, temporary.open("wb") as new:
                new.writelines(_clean(line, values) for line in old)
            temporary.replace(log)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _has_secret(log: Path, values: Collection[str]) -> bool:
    with opened(log) as stream:
        return any(_clean(line, values) != line for line in stream)


def _clean(line: bytes, values: Collection[str]) -> bytes:
    return redacted(line.decode("utf-8", "surrogateescape"), values).encode("utf-8", "surrogateescape")
