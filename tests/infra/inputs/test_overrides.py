"""`--set` changes a matrix as an edit of its file would; the file's own checks judge the result."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.infra.inputs.overrides import overriding, read_overridden
from harness.plan.expansion.expand import expand

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
