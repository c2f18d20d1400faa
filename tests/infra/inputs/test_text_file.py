from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.infra.inputs.text_file import read_text


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
