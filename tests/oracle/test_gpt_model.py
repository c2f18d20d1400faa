"""The oracle against megatron-core's GPTModel of many kinds: gpt_models.py, in a process with stubs of CUDA."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.gpt_models import VARIANTS


@pytest.fixture(scope="module")
def found(root: Path) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.oracle.gpt_models"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.train
@pytest.mark.parametrize("name", VARIANTS)
def test_losses_and_gradients_agree_and_every_field_is_covered(found: dict[str, Any], name: str) -> None:
    seen = found[name]
    assert seen["uncovered"] == []
    assert seen["loss"] < 1e-6
    assert seen["gradient"] < 1e-5, seen["at"]
