from __future__ import annotations

import os

import pytest

from harness.node.load import load
from harness.node.probe import imports


@pytest.mark.parametrize("shown", [None, "0,1"])
def test_gpus_are_hidden_while_modules_load_and_shown_again(shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    seen: list[str | None] = []
    monkeypatch.setattr(imports, "import_all", lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")))
    load()
    assert (seen, os.environ.get("CUDA_VISIBLE_DEVICES")) == ([""], shown)
