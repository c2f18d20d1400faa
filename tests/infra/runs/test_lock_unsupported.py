"""File systems without flock: Lustre without its mount option, NFS without a lock daemon."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from harness.core.run.run_dir import RunDir
from harness.infra.runs.lock import only_launcher
from harness.infra.stacks.artifact_store import locked


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_file_locks_the_run_continues_with_a_warning(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)
    with only_launcher(RunDir(tmp_path / "run")), locked(tmp_path / "made"):
        said = capsys.readouterr().err
    assert said.count("has no locks (flock)") == 2
    assert str(tmp_path / "run") in said


def test_any_other_error_of_a_lock_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="broken"), only_launcher(RunDir(tmp_path)):
        pass
