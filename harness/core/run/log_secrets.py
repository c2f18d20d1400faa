"""Removes secrets that the code under test printed to a log, once nothing writes to the log any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from harness.core.run.run_dir import needs_room, opened, temporary_beside
from harness.core.text.secrets import ends_in_key, redacted

_MOST_OF_KEY = 65536  # bytes; what only begins like a private key is redacted in pieces of this size


def without_secrets_in(log: Path, values: Collection[str]) -> None:
    """Replace each secret in a log by ***; a log without secrets is not touched, nor a missing one.

    `values`: secrets known by value, see `secret_values`. Bytes that are not UTF-8 are kept. DiskFullError if there is
    no space for the new log; the old one is then kept.
    """
    try:
        if not _has_secret(log, values):
            return
    except FileNotFoundError:
        return
    with needs_room(log):
        temporary = temporary_beside(log)
        try:
            with opened(log) as old, temporary.open("xb") as new:
                new.writelines(_clean(piece, values) for piece in _pieces(old))
            temporary.replace(log)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def _has_secret(log: Path, values: Collection[str]) -> bool:
    with opened(log) as stream:
        return any(_clean(piece, values) != piece for piece in _pieces(stream))


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, those of a private key joined: no other secret spans lines."""
    piece, in_key = b"", False
    for line in lines:
        piece += line
        if b"PRIVATE KEY" in line:  # so that each line is searched once, however long the key
            in_key = ends_in_key(line.decode("latin-1"))
        if not in_key or len(piece) > _MOST_OF_KEY:
            yield piece
            piece, in_key = b"", False
    yield piece


def _clean(piece: bytes, values: Collection[str]) -> bytes:
    return redacted(piece.decode("utf-8", "surrogateescape"), values).encode("utf-8", "surrogateescape")
