from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import DiskFullError
from harness.core.run import log_secrets
from harness.core.run.log_secrets import without_secrets_in


def test_secrets_known_by_shape_or_value_are_removed_and_the_rest_is_kept_byte_for_byte(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_bytes(b"step 1\r\n\xff\xfe with hunter2-hunter2\ncloning https://me:pw@host/x\nno newline at the end")
    without_secrets_in(log, ["hunter2-hunter2"])
    assert log.read_bytes() == b"step 1\r\n\xff\xfe with ***\ncloning https://***@host/x\nno newline at the end"
    assert list(tmp_path.iterdir()) == [log]


def test_every_line_of_a_private_key_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    kind = "RSA PRIVATE KEY"
    key = f"-----BEGIN {kind}-----\n" + "MIIEow\n" * 30 + f"-----END {kind}-----"
    log.write_text(f"loading\n{key}\nstep 1\n{key[:40]}")
    without_secrets_in(log, [])
    assert log.read_text() == "loading\n***\nstep 1\n***"


def test_what_only_begins_like_a_private_key_hides_a_bounded_part_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("-----BEGIN PRIVATE KEY-----\n" + "step 1\n" * 100_000)
    without_secrets_in(log, [])
    left = log.read_text()
    assert left.startswith("***")
    assert 600_000 < len(left) < 700_000


def test_a_log_without_a_secret_is_not_written_again(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    log.write_text("step 1\n")
    before = log.stat()
    without_secrets_in(log, ["hunter2-hunter2"])
    assert log.stat().st_ino == before.st_ino


def test_a_missing_log_is_not_an_error(tmp_path: Path) -> None:
    without_secrets_in(tmp_path / "rank.log", [])
    assert list(tmp_path.iterdir()) == []


def test_without_room_the_log_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "rank.log"
    log.write_text("hunter2-hunter2\n")

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    has_secret = log_secrets._has_secret(log, ["hunter2-hunter2"])
    monkeypatch.setattr(log_secrets, "_has_secret", lambda *_: has_secret)
    monkeypatch.setattr(log_secrets, "_clean", full)
    with pytest.raises(DiskFullError, match="free some space on its disk"):
        without_secrets_in(log, ["hunter2-hunter2"])
    assert log.read_text() == "hunter2-hunter2\n"
    assert list(tmp_path.iterdir()) == [log]
