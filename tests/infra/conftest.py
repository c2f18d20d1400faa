from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for environments and checkouts."""
    folder = tmp_path / "kept"
    monkeypatch.setenv("HARNESS_STACKS", str(folder))
    return folder
