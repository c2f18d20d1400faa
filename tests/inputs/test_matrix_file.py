from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.inputs.matrix_file import overriding, read_lengths, read_matrix, read_overridden
from harness.matrix.expansion.expand import expand

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


TEXT = "name: small\ntrain: {steps: 2}\nmatrix: {tp: [1], packing: reference}\n"


def test_settings_reach_sections_and_axes_and_leave_the_rest(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(TEXT)
    settings = ["train.steps=5", "matrix.tp=[1, 2]", "matrix.model.layers=[2, 4]", "documents.mode=plain"]
    matrix = read_overridden(tmp_path / "m.yaml", settings)
    assert matrix.train.steps == 5
    assert matrix.documents.mode == "plain"
    cells = expand(matrix).cells
    assert {(cell.config.layout.tp, cell.config.model.layers) for cell in cells if cell.role == "cell"} == {
        (1, 2),
        (1, 4),
        (2, 2),
        (2, 4),
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("train.stepz=5", "--set: train.stepz: unknown key (allowed: steps, "),
        ("matrix.tp=[1, 0]", "--set: matrix.tp[1]: must be at least 1 (found 0)"),
        ("train={seq_length: 0}", "--set: train.seq_length: must be at least 4 (found 0)"),
    ],
)
def test_a_problem_of_a_setting_names_the_option_and_not_a_line_of_the_file(
    tmp_path: Path, setting: str, said: str
) -> None:
    (tmp_path / "m.yaml").write_text(TEXT)
    with pytest.raises(InputError, match=f"^{re.escape(said)}"):
        read_overridden(tmp_path / "m.yaml", [setting])


def test_a_problem_of_the_file_beside_a_setting_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(TEXT.replace("tp", "tpp"))
    with pytest.raises(InputError, match=r"m.yaml:3: matrix.tpp: "):
        read_overridden(tmp_path / "m.yaml", ["matrix.tp=[1]"])


@pytest.mark.parametrize("setting", ["steps", "=5", "train.=5", ".steps=5", ""])
def test_what_is_no_setting_is_an_input_error(setting: str) -> None:
    with pytest.raises(InputError, match="--set: needs a key"):
        overriding([setting])


def test_a_value_that_is_no_yaml_names_its_key() -> None:
    with pytest.raises(InputError, match=r"--set matrix.tp:1: not valid YAML"):
        overriding(["matrix.tp=[1, 2"])


def test_values_of_the_file_are_not_changed_in_place() -> None:
    values = {"train": {"steps": 2}}
    assert overriding(["train.steps=5"])(values) == {"train": {"steps": 5}}
    assert values == {"train": {"steps": 2}}
