from __future__ import annotations

import csv
import math
import sys
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.core.serialization import loads
from harness.infra.table_files import write_table
from tests.hostile import TEXTS, commands_in

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
