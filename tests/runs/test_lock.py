from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.core.run.run_dir import RunDir
from harness.runs.lock import only_launcher


def test_a_second_launcher_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with (
        only_launcher(RunDir(tmp_path)),
        pytest.raises(InputError, match=f"another launcher follows this run: pid {os.getpid()} on "),
        only_launcher(RunDir(tmp_path)),
    ):
        pass


def test_the_lock_is_free_after_its_holder(tmp_path: Path) -> None:
    for _ in range(2):
        with only_launcher(RunDir(tmp_path)):
            assert str(os.getpid()) in (tmp_path / "launcher.lock").read_text()
        assert (tmp_path / "launcher.lock").read_text() == ""
