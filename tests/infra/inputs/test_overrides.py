"""`--set` changes a matrix as an edit of its file would; the file's own checks judge the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.infra.inputs.matrix_file import read_matrix
from harness.infra.inputs.overrides import overriding
from harness.plan.expansion.expand import expand

TEXT = "name: small\ntrain: {steps: 2}\nmatrix: {tp: [1], packing: reference}\n"


def test_settings_reach_sections_and_axes_and_leave_the_rest(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(TEXT)
    settings = ["train.steps=5", "matrix.tp=[1, 2]", "matrix.model.layers=[2, 4]", "documents.mode=plain"]
    matrix = read_matrix(tmp_path / "m.yaml", overriding(settings))
    assert matrix.train.steps == 5
    assert matrix.documents.mode == "plain"
    cells = expand(matrix).cells
    assert {(cell.config.layout.tp, cell.config.model.layers) for cell in cells if cell.role == "cell"} == {
        (1, 2),
        (1, 4),
        (2, 2),
        (2, 4),
    }


def test_a_key_that_does_not_exist_gets_the_files_own_error(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(TEXT)
    with pytest.raises(InputError, match=r"train.stepz: unknown key .*did you mean 'steps'"):
        read_matrix(tmp_path / "m.yaml", overriding(["train.stepz=5"]))


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
