"""Golden files, which are compared whole and never heal themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def assert_golden(path: Path, text: str) -> None:
    """Compare a text with a golden file. HARNESS_UPDATE_GOLDENS=1 rewrites the file and fails the test, so that every
    rewrite is reviewed."""
    if os.environ.get("HARNESS_UPDATE_GOLDENS") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"rewrote {path.name}: read the difference, then run again without HARNESS_UPDATE_GOLDENS")
    assert path.is_file(), f"{path} is missing; HARNESS_UPDATE_GOLDENS=1 writes it"
    assert text == path.read_text(encoding="utf-8")
