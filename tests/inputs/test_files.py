from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.infra.files import checkout, matrix_path, matrix_word, read_text, shipped


def test_a_file_is_read_whole_with_uniform_line_ends(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes("é\r\nb\rc\n".encode())
    assert read_text(file, 100) == "é\nb\nc\n"
    assert read_text(file, file.stat().st_size) == "é\nb\nc\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/dev/zero", "not a regular file"),
        ("pipe", "not a regular file"),
        (".", "Is a directory"),
        ("none", "no such file"),
        ("a\0b", "null"),
        ("x" * 300, "File name too long"),
        ("large", "too large (allowed: 10 bytes)"),
        ("binary", "binary:2: not a UTF-8 text file"),
        ("nul", "nul:2: not a text file: it contains a NUL character"),
    ],
)
def test_anything_else_is_an_input_error_and_does_not_block(tmp_path: Path, name: str, expected: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"x" * 11)
    (tmp_path / "nul").write_bytes(b"a\n\0")
    (tmp_path / "binary").write_bytes(b"a\n\xff")
    with pytest.raises(InputError) as caught:
        read_text(tmp_path / name, 10)
    assert expected in str(caught.value)


@pytest.mark.parametrize("name", ["smoke", "smoke.yaml"])
def test_a_shipped_matrix_is_found_by_its_name(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checkout() == root
    assert matrix_path(name) == root / "matrices" / "smoke.yaml"


def test_a_shipped_matrix_is_said_by_its_name_and_another_file_by_its_path(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert matrix_word(matrix_path("smoke")) == "smoke"
    for path in (Path("matrices/smoke.yaml"), tmp_path / "smoke.yaml"):
        assert matrix_word(path) == str(path)


def test_a_file_takes_precedence_over_a_shipped_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smoke.yaml").touch()
    assert matrix_path("smoke.yaml") == Path("smoke.yaml")


@pytest.mark.parametrize("name", ["none", "clusters", "matrices/smoke.yaml", "../README.md", ""])
def test_paths_and_unknown_names_are_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert matrix_path(name) == Path(name)


def test_job_templates_of_the_checkout_are_found(root: Path) -> None:
    assert shipped("sbatch_templates") == root / "sbatch_templates"


@pytest.mark.parametrize("name", ["n" * 300, "n" * 252, "nul\0"])
def test_a_name_that_no_file_can_have_is_a_path(name: str) -> None:
    assert matrix_path(name) == Path(name)
