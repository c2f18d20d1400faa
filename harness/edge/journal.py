"""Journals: JSON lines that one process appends and others read while it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.words.jsonable import loads


class Journal:
    """Reads the whole lines that were added since the last call; a line still being written waits for the next."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def new_events(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            for line in stream:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                yield loads(line.decode("utf-8"))


def read_events(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a journal; none when there is no such file."""
    return list(Journal(path).new_events())
