"""File systems without flock: Lustre without its mount option, NFS without a lock daemon."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
from pathlib import Path

import pytest

from harness.core.run.run_dir import RunDir
from harness.launch.stacks.artifact_store import locked
from harness.runs.lock import launcher_of, only_launcher


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


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_a_launcher_is_known_until_it_ends(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert launcher_of(run) is None
    with only_launcher(run):
        assert launcher_of(run) == f"pid {os.getpid()} on {socket.gethostname()}"
    assert launcher_of(run) is None


@pytest.mark.usefixtures("no_locks")
def test_without_file_locks_a_killed_launcher_is_known_to_have_ended_on_its_host_only(tmp_path: Path) -> None:
    run, gone = RunDir(tmp_path), subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "launcher.lock").write_text(f"pid {gone.pid} on {socket.gethostname()}")
    assert launcher_of(run) is None
    (tmp_path / "launcher.lock").write_text("pid 1 on login-2")
    assert launcher_of(run) == "unknown: the file system has no locks; pid 1 on login-2 has not said that it ended"


def test_any_other_error_of_a_lock_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="broken"), only_launcher(RunDir(tmp_path)):
        pass
