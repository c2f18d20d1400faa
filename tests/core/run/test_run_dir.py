"""Files are complete or absent, even when the disk is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from harness.core.errors import DiskFullError, InputError
from harness.core.run.run_dir import AttemptDir, RunDir, needs_room, path_component, write_atomic, write_json


def test_a_full_disk_is_reported_with_the_file() -> None:
    path = Path("/dev/full")
    text = "cannot write /dev/full: No space left on device; free some space on its disk"
    with pytest.raises(DiskFullError, match=text), needs_room(path), path.open("wb", buffering=0) as stream:
        stream.write(b"any")


def test_a_full_quota_is_a_full_disk_and_other_errors_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="quota"), needs_room(tmp_path):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    with pytest.raises(PermissionError), needs_room(tmp_path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, "old")

    def full(self: Path, target: Path) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DiskFullError):
        write_atomic(path, "new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", ".hidden", "a b", "a\n", "-x", "x" * 201])
def test_a_name_that_could_leave_the_run_directory_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a file"):
        path_component(name)


def test_new_files_are_never_writable_for_others(tmp_path: Path) -> None:
    script = "\n".join(
        [
            "import os, sys, pathlib",
            "from harness.core.run.run_dir import protect_new_files, write_json",
            "os.umask(int(sys.argv[2], 8))",
            "protect_new_files()",
            "write_json(pathlib.Path(sys.argv[1]) / 'folder' / 'file', 1)",
        ]
    )
    for umask, modes in (("000", (0o755, 0o644)), ("027", (0o750, 0o640)), ("077", (0o700, 0o600))):
        root = tmp_path / umask
        root.mkdir()
        subprocess.run([sys.executable, "-c", script, root, umask], check=True)
        found = [(root / name).stat().st_mode & 0o777 for name in ("folder", "folder/file")]
        assert tuple(found) == modes


@pytest.mark.parametrize(
    ("text", "run_id"),
    [
        ('{"run_id": "smoke-1", "matrix_name": "x"}', "smoke-1"),
        ('{\n  "run_id": "smoke-1"}', "smoke-1"),
        ('{"matrix_name": "x", "run_id": "smoke-1"}', ""),
        ("", ""),
    ],
)
def test_an_attempt_knows_its_number_and_its_run(text: str, run_id: str, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    attempt = run.attempt("cell", 12)
    assert (attempt.number, attempt.run_id) == (12, "")  # there is no plan yet
    run.plan.write_text(text, encoding="utf-8")
    assert (attempt.number, attempt.run_id) == (12, run_id)


@pytest.mark.parametrize("name", ["attempt-", "attempt-x", "other"])
def test_another_folder_is_no_attempt(name: str) -> None:
    attempt = AttemptDir(Path("/", name))
    assert (attempt.number, attempt.run_id) == (0, "")


def test_a_run_knows_its_cells_and_they_know_their_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    write_json(run.plan, {"run_id": "run-1"})
    for name in ("tp1", "tp2"):
        run.attempt(name).root.mkdir(parents=True)
    assert run.attempt("tp1").root == tmp_path / "run" / "cells" / "tp1" / "attempt-1"
    assert sorted(path.name for path in run.cells()) == ["tp1", "tp2"]
    assert run.attempt("tp1").run == run
    assert run.attempt("tp1").resumed.run_id == "run-1"
