"""An axis needs one declaration: that of tests/matrix/new_axis.py shows up everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.helpers import expand_axes


@pytest.fixture(scope="module")
def facts(root: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.matrix.new_axis"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_plan_has_a_cell_for_each_value_with_one_control_at_the_default(facts: dict[str, Any]) -> None:
    assert facts["axes"] == ["none", "some", "all"]
    (control,) = facts["controls"]
    assert control.startswith("tp1-pp1-cp1-unpacked-")


def test_cells_share_a_control_only_if_it_has_their_value_of_a_setting_that_controls_keep(
    facts: dict[str, Any],
) -> None:
    assert facts["kept"] == [["nearest", "nearest", "fp32"], ["stochastic", "stochastic", "fp32-rounding-stochastic"]]


def test_names_and_ids_distinguish_the_values_and_omit_the_default(facts: dict[str, Any]) -> None:
    plain = "tp1-pp1-cp1-sft"
    assert facts["names"] == [plain, f"{plain}-shuffling-some", f"{plain}-shuffling-all"]
    assert len({name[-8:] for name in facts["ids"]}) == 3
    (without,) = [item.id for item in expand_axes({"packing": "sft"}).cells if item.role == "cell"]
    assert facts["ids"][0] == without


def test_the_schema_has_its_values_alias_and_description(facts: dict[str, Any]) -> None:
    assert facts["schema"]["enum"] == ["none", "some", "all"]
    assert facts["schema"]["description"] == "How weights are shuffled."
    assert facts["alias"] == "Same as shuffling."


def test_an_unknown_value_is_refused(facts: dict[str, Any]) -> None:
    assert facts["problem"] == "t.yaml: matrix.shuffling: must be one of none, some, all (found 'most')"


def test_the_matrix_of_one_cell_has_it_and_loads_to_the_same_cell(facts: dict[str, Any]) -> None:
    assert facts["one cell"]["shuffling"] == "all"
    assert facts["again"][0] == facts["again"][1]
    assert facts["json"]


def test_a_shrink_tries_the_default(facts: dict[str, Any]) -> None:
    assert facts["smaller"] == ["shuffling all -> none"]


def test_tables_show_it_and_the_page_gets_its_row(facts: dict[str, Any]) -> None:
    assert facts["label"] == "shuffling=all"
    (row,) = facts["page"]
    assert row.split(" | ")[:3] == ["| `shuffling`<br>`weight_shuffling`", "`none`, `some`, `all`", "`none`"]
    assert row.endswith(" | How weights are [shuffled](../models.md). |")
