"""The profile and the output shown in docs/clusters.md, for tests that compare them with real output."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """(language, text) of every block, in order."""
    return _BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def profile() -> str:
    """The profile of the test cluster."""
    (text,) = (text for language, text in blocks() if language == "yaml")
    return text


def shown(first: str) -> list[str]:
    """The lines of the output block that begins with this text."""
    (text,) = (text for language, text in blocks() if language == "text" and text.startswith(first))
    return text.splitlines()
