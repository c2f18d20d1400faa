"""What docs/clusters.md shows, for the tests that hold it to what commands print."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Language and text of every block, in order."""
    return _BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def profile() -> str:
    """The profile of the test cluster."""
    (text,) = (text for language, text in blocks() if language == "yaml")
    return text


def shown(first: str) -> list[str]:
    """The lines of the block of output that begins with this text."""
    (text,) = (text for language, text in blocks() if language == "text" and text.startswith(first))
    return text.splitlines()
