"""What --output names: files are replaced whole, pipes and devices are written to, folders are refused."""

from __future__ import annotations

import csv
import math
import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError, InputError
from harness.core.serialization import loads
from harness.reporting.output_files import write_table, written
from tests.hostile import TEXTS, commands_in


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


ROWS = [{"cell": 'a "b", c', "value": 1.5}, {"cell": "line\nbreak", "value": None}, {"cell": "", "value": math.inf}]


def test_csv_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.csv"
    assert write_table(ROWS, "csv", path) == 3
    with path.open(newline="") as stream:
        read = list(csv.reader(stream))
    assert read == [["cell", "value"], ['a "b", c', "1.5"], ["line\nbreak", ""], ["", "inf"]]
    assert list(path.parent.iterdir()) == [path]


def test_json_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert write_table(iter(ROWS), "json", path) == 3
    assert loads(path.read_text()) == ROWS
    assert write_table([], "json", path) == 0
    assert loads(path.read_text()) == []


def test_without_a_file_rows_go_to_the_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(ROWS[:1], "csv", None)
    assert capsys.readouterr().out == 'cell,value\n"a ""b"", c",1.5\n'


def test_rows_that_end_in_an_error_leave_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("old")

    def broken() -> object:
        yield ROWS[0]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_table(broken(), "csv", path)  # type: ignore[arg-type]
    assert [(item.name, item.read_text()) for item in tmp_path.iterdir()] == [("rows.csv", "old")]


def test_parquet_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"Parquet needs the package pyarrow \(install pyarrow"):
        write_table(ROWS, "parquet", tmp_path / "rows.parquet")
    with pytest.raises(InputError, match="--output FILE"):
        write_table(ROWS, "parquet", None)
    assert list(tmp_path.iterdir()) == []


def test_parquet_round_trips(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed; nothing needs it")
    assert write_table(ROWS, "parquet", tmp_path / "rows.parquet") == 3
    assert parquet.read_table(tmp_path / "rows.parquet").to_pylist() == ROWS


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_ci_system_finds_no_command_in_a_table_on_the_standard_output(
    form: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    rows = [
        {"cell": f"::stop-commands::{name}", "reason": f"x\n{text}"}
        for name, text in TEXTS.items()
        if name != "surrogate"
    ]
    rows += [{"cell": "::x", "reason": "boom\n::add-mask::PASS ##[error]z ##vso[x] section_end:1:x"}]
    write_table(rows, form, None)
    shown = capsys.readouterr().out
    assert commands_in(shown) == []
    if form == "json":
        assert loads(shown) == rows
    else:
        assert [len(row) for row in csv.reader(shown.splitlines())] == [2] * (len(rows) + 1)
