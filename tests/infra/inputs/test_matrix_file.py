from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.infra.inputs.matrix_file import read_lengths, read_matrix

MATRIX = "name: t\ndocuments:\n  mode: file\n  path: data/lengths.csv\nmatrix:\n  packing: sft\n"


def write(folder: Path, text: str) -> Path:
    (folder / "data").mkdir()
    (folder / "data" / "lengths.csv").write_text(text)
    file = folder / "m.yaml"
    file.write_text(MATRIX)
    return file


@pytest.mark.parametrize("text", ["12\n7\n300\n", "length\n12\n7\n300", "seq_len\r\n 12 \r\n\r\n7\r\n300\r\n"])
def test_lengths_are_one_column_with_or_without_a_header(tmp_path: Path, text: str) -> None:
    assert read_matrix(write(tmp_path, text)).documents.lengths == (12, 7, 300)


def test_the_path_is_relative_to_the_matrix_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "5\n")
    monkeypatch.chdir("/")
    assert read_matrix(file).documents.lengths == (5,)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("length\n12\nx\n", 3, "found a text; allowed: an integer from 1 to 2147483647"),
        ("0\n", 1, "found '0'"),
        ("-3\n", 1, "found '-3'"),
        ("1.5\n", 1, "found '1.5'"),
        ("a,b\n1,2\n", 1, "found 2 columns; allowed: one column of lengths"),
        ("length\n", None, "contains no document length"),
        ("", None, "contains no document length"),
    ],
)
def test_a_bad_length_is_named_with_file_and_line(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    file = tmp_path / "l.csv"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_lengths(file)
    assert caught.value.problems[0].line == line
    assert message in str(caught.value)
    assert "l.csv" in str(caught.value)


def test_problems_of_the_lengths_have_the_line_that_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "12\nx\ny\n")
    with pytest.raises(InputError) as caught:
        read_matrix(file)
    assert [str(problem) for problem in caught.value.problems] == [
        f"{file}:4: documents.path: data/lengths.csv line {line}: not a document length "
        f"(found a text; allowed: an integer from 1 to 2147483647)"
        for line in (2, 3)
    ]


def test_a_missing_lengths_file_is_an_input_error(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(MATRIX)
    with pytest.raises(InputError, match=r"m.yaml:4: documents.path: data/lengths.csv: no such file"):
        read_matrix(file)


def test_a_problem_in_the_matrix_has_the_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("name: t\nmatrix:\n  packing: sft\n  tp:\n    - 1\n    - two\n")
    with pytest.raises(InputError) as caught:
        read_matrix(file)
    assert str(caught.value) == f"{file}:6: matrix.tp[1]: must be an integer (found 'two')"


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ("stacks: {dev: {python: /usr/bin/python3, env: {SITE: a correct-horse-battery b}}}\n", "stacks.dev.env.SITE"),
        ("constraints: ['tp > 1', 'correct-horse-battery']\n", r"constraints\[1\]"),
        ("stacks: {dev: {env: {correct-horse-battery: x}}}\n", "stacks.dev.env"),
    ],
)
def test_the_value_of_a_secret_variable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, place: str
) -> None:
    path = write(tmp_path, "12\n")
    path.write_text(MATRIX + more)
    monkeypatch.setenv("DB_PASSWORD", "correct-horse-battery")
    with pytest.raises(InputError, match=rf"m.yaml:7: {place}\S*: holds a secret"):
        read_matrix(path)
