from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from harness.core.data_paths.table import FORBIDDEN
from harness.node.data_paths import rules
from harness.node.data_paths.rules import CASES, OtherCase, _refusal


def test_every_case_of_the_axis_has_a_combination() -> None:
    assert tuple(CASES) == FORBIDDEN


def test_both_combinations_are_validated_and_a_refusal_is_returned_with_its_type(tmp_path: Path) -> None:
    def validate(forbidden: bool, folder: Path) -> None:
        assert folder == tmp_path
        if forbidden:
            sys.exit("no such row")

    case = OtherCase(validate, ())
    assert _refusal(case, False, tmp_path) == (None, None)
    assert _refusal(case, True, tmp_path) == ("no such row", "SystemExit")


def test_the_command_line_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = list(sys.argv)
    with rules._command_line(["--seq-length", "64"], ranks=2):
        assert (sys.argv[1:], os.environ["WORLD_SIZE"]) == (["--seq-length", "64"], "2")
    assert sys.argv == before
    assert "WORLD_SIZE" not in os.environ


def test_without_a_gpu_the_validator_sees_the_architecture_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = SimpleNamespace(get_device_arch_version=lambda: 9)
    with rules._architecture(arguments):
        assert arguments.get_device_arch_version() == 10
    assert arguments.get_device_arch_version() == 9
