from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from harness.core.errors import InputError
from harness.inputs.yaml_file import dump, read


def test_values_are_plain_and_every_key_and_item_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("# comment\nname: a\nmodel: {layers: 4,\n  heads: 8}\nlist:\n  - x: on\n  - 2027-01-31\nlr: 1e-3\n")
    found = read(file)
    assert found.file == str(file)
    assert found.values == {
        "name": "a",
        "model": {"layers": 4, "heads": 8},
        "list": [{"x": "on"}, date(2027, 1, 31)],  # YAML 1.2: `on` is text
        "lr": 0.001,
    }
    assert type(found.values) is dict
    assert found.lines == {
        ("name",): 2,
        ("model",): 3,
        ("model", "layers"): 3,
        ("model", "heads"): 4,
        ("list",): 5,
        ("list", 0): 6,
        ("list", 0, "x"): 6,
        ("list", 1): 7,
        ("lr",): 8,
    }


def test_anchors_and_merge_keys_keep_the_lines_of_their_values(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("a: &a\n  x: 1\nb:\n  <<: *a\n  y: 2\n")
    found = read(file)
    assert found.values["b"] == {"x": 1, "y": 2}
    assert (found.lines["b", "x"], found.lines["b", "y"]) == (2, 5)


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key"),
        ("a:\n  x: 1\n  x: 1\n", 3, "duplicate key"),
        ("a: [1\nb: 2", 1, "not valid YAML"),
        ("a:\n\t- 1", 2, "not valid YAML"),
        ("a: !!python/object/apply:os.system [x]", 1, "could not determine a constructor"),
        ("--- 1\n--- 2", 2, "another document"),
        ("a: 2027-99-99", 1, "month must be in 1..12"),
        ("&a [*a]", 1, "contains itself"),
        ("a: 1\nb: x\x07y\n", 2, "contains the character U+0007, which YAML does not allow"),
        ('a: 1\nb: "x\\0y"\n', 2, "a text with U+0000"),
        ('a: 1\nb: "\\uD800"\n', 2, "a text with U+D800"),
        ("a: 1\nb: !!int x\n", 2, "invalid literal"),
        ("a: 1\n%TAG !a! b\n", 2, "not valid YAML here, or just before"),
        ("a: 1\n%YAML 1.2\n", 2, "not valid YAML here, or just before"),
        ("%YAML 1.2", 1, "not valid YAML here, or just before"),
        ("a: 1\n? [b]\n: 2\n", 2, "a key must be one value, not a list or a mapping"),
        ("a: 1\n? - {b: 1}\n: 2\n", 2, "a key must be one value, not a list or a mapping"),
        ("a: 1\n? {b: 1}\n: 2\n", 2, "a key must be one value, not a list or a mapping"),
    ],
)
def test_anything_but_one_yaml_document_is_an_input_error_with_its_line(
    tmp_path: Path, text: str, line: int | None, expected: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read(file)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(file), line)
    assert expected in problem.message


def bomb(levels: int) -> str:
    """YAML in which each level repeats the one before ten times, by aliases."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "found", "allowed"),
    [
        (bomb(9), 5, "too many values", "20,000 keys, values and items, aliases written out"),
        ("a:\n" + "- 1\n" * 20_000, 19_999, "too many values", "20,000 keys, values and items"),
        ("a:\n  " + "[" * 60 + "]" * 60, 2, "nested too deeply", "50 levels"),
        ("a:\n  " + "{a: " * 20_000, 2, "nested too deeply", "50 levels"),
        ("a: 1\nb: " + "x" * 10_001, 2, "a text of 10,001 characters", "10,000 characters"),
        ("a: 1\nb: " + "9" * 5_000, 2, "a number of 5000 characters", "40 characters"),
        ("a: 1\nb: 0x" + "f" * 5_000, 2, "a number of 5002 characters", "40 characters"),
    ],
    ids=["alias bomb", "long list", "deep list", "deep mapping", "long text", "long number", "long hexadecimal"],
)
def test_input_beyond_a_limit_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, found: str, allowed: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read(file)
    (problem,) = caught.value.problems
    assert (problem.line, problem.message, problem.allowed) == (line, found, f"at most {allowed}")


def test_aliases_below_the_bound_are_written_out(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(bomb(3))
    assert read(file).values["a2"][9][9] == ["x"] * 10


def test_a_missing_file_a_folder_and_a_binary_file_are_input_errors(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff")
    for path, expected in (
        (tmp_path / "none.yaml", "no such file"),
        (tmp_path, "cannot be read"),
        (binary, "not a UTF-8 text file"),
    ):
        with pytest.raises(InputError, match=expected):
            read(path)


def test_an_empty_file_has_no_values(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n")
    assert (read(file).values, read(file).lines) == (None, {})


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("abc: #-'\"\n\\é", max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc-:", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(value=st.dictionaries(st.text("xyz", min_size=1), _VALUES, max_size=4))
def test_what_is_dumped_reads_back_the_same(value: dict[str, Any]) -> None:
    assert YAML(typ="safe", pure=True).load(dump(value)) == value


def test_a_dump_keeps_the_order_and_repeats_shared_values(tmp_path: Path) -> None:
    shared = {"layers": 4}
    assert dump({"b": shared, "a": shared}) == "b:\n  layers: 4\na:\n  layers: 4\n"
