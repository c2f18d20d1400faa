"""What --output names: files are replaced whole, pipes and devices are written to, folders are refused."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError, InputError
from harness.infra.output_file import written


def write(path: Path, text: bytes = b"new") -> None:
    with written(path) as stream:
        stream.write(text)


def test_a_link_leads_to_the_new_content(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "target", tmp_path / "link"
    link.symlink_to(Path("there") / "target")
    for text in (b"first", b"second"):  # without a target, and with one
        write(link, text)
        assert link.is_symlink()
        assert target.read_bytes() == text
    assert list(target.parent.iterdir()) == [target]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    assert read == [b"new"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_character_device_is_written_to(tmp_path: Path) -> None:
    """A terminal, by a link and by its name."""
    mine, terminal = os.openpty()
    link = tmp_path / "link"
    link.symlink_to(os.ttyname(terminal))
    write(link, b"new\n")
    assert os.read(mine, 100) == b"new\r\n"
    assert stat.S_ISCHR(link.stat().st_mode)
    os.close(mine)
    os.close(terminal)


def test_a_stream_of_this_process_is_appended_to(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as stream:
        stream.write(b"old ")
        stream.flush()
        write(Path(f"/dev/fd/{stream.fileno()}"))
    assert (tmp_path / "log").read_bytes() == b"old new"


@pytest.mark.parametrize("name", ["folder", "link", "file/x", "x" * 300, "loop", "nul\0"])
def test_what_cannot_be_written_is_an_input_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="--output: "):
        write(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "link", "loop"]


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(InfrastructureError, match="cannot write"), written(path):
        raise BrokenPipeError("no reader")
    with pytest.raises(ZeroDivisionError), written(path):
        raise ZeroDivisionError
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("file", "old")]
