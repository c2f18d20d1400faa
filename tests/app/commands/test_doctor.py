from __future__ import annotations

import pytest

from harness.app.commands.doctor import doctor
from harness.infra import doctor as machine
from harness.infra.doctor import WARN, Check


def test_no_word_is_broken_at_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = Check(
        "InfiniBand", WARN, "no active port on this machine (no device)", "if the nodes have none either, NCCL"
    )
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(machine, "checks", lambda *_: [found])
    doctor("local", None)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 80
    assert " ".join(lines).split()[-1] == "NCCL)"
