from __future__ import annotations

from typing import Any

import pytest

from harness.matrix.axes import parse_axes
from harness.matrix.problems import Problems
from harness.upstreams.table import DATA_PATHS


def combinations(section: dict[str, Any]) -> list[dict[str, Any]]:
    problems = Problems("t.yaml", {})
    axes = parse_axes(section, problems)
    problems.raise_any()
    return [row.values for row in axes.combinations()]


def complaints(section: Any) -> list[str]:
    problems = Problems("t.yaml", {})
    parse_axes(section, problems)
    return [str(problem) for problem in problems.found]


def test_lists_multiply_and_a_scalar_is_a_list_of_one() -> None:
    made = combinations({"tp": [1, 2], "pp": 4, "packing": ["sft", "reference"]})
    assert [(row["tp"], row["pp"], row["packing"]) for row in made] == [
        (1, 4, "sft"),
        (1, 4, "reference"),
        (2, 4, "sft"),
        (2, 4, "reference"),
    ]


def test_a_list_of_mappings_ties_its_axes_together() -> None:
    made = combinations({"layout": [{"tp": 2, "pp": 4}, {"tp": 1, "pp": 2}], "cp": [1, 2]})
    assert [(row["tp"], row["pp"], row["cp"]) for row in made] == [(2, 4, 1), (2, 4, 2), (1, 2, 1), (1, 2, 2)]


def test_long_megatron_names_and_dashes_mean_the_same_axis() -> None:
    made = combinations(
        {"tensor-model-parallel-size": 2, "pipeline_model_parallel_size": 4, "sequence-parallel": False}
    )
    assert made == [{"tp": 2, "pp": 4, "sp": False}]


def test_exclude_removes_partial_matches() -> None:
    made = combinations({"tp": [1, 2], "cp": [1, 2], "exclude": [{"tp": 2, "cp": 2}, {"cp": 1, "tp": 1}]})
    assert made == [{"tp": 1, "cp": 2}, {"tp": 2, "cp": 1}]


def test_exclude_needs_the_axis_to_be_there() -> None:
    section = {"tp": [1, 2], "exclude": [{"sp": "auto"}], "include": [{"tp": 4, "sp": "auto"}]}
    assert combinations(section) == [{"tp": 1}, {"tp": 2}, {"tp": 4, "sp": None}]


def test_include_follows_the_example_of_the_github_documentation() -> None:
    """The example fruit x animal of GitHub's page, with tp for fruit, cp for animal, dp for colour, pp for shape."""
    section = {
        "tp": [1, 2],
        "cp": [1, 2],
        "include": [{"dp": 1}, {"dp": 2, "cp": 2}, {"tp": 1, "pp": 3}, {"tp": 4}, {"tp": 4, "cp": 2}],
    }
    assert combinations(section) == [
        {"tp": 1, "cp": 1, "dp": 1, "pp": 3},
        {"tp": 1, "cp": 2, "dp": 2, "pp": 3},
        {"tp": 2, "cp": 1, "dp": 1},
        {"tp": 2, "cp": 2, "dp": 2},
        {"tp": 4},
        {"tp": 4, "cp": 2},
    ]


def test_include_is_not_excluded() -> None:
    assert combinations({"tp": [1, 2], "exclude": [{"tp": 2}], "include": [{"tp": 2, "cp": 2}]}) == [
        {"tp": 1},
        {"tp": 2, "cp": 2},
    ]


def test_a_matrix_of_include_rows_alone_is_just_those_rows() -> None:
    assert combinations({"include": [{"tp": 2}, {"pp": 2}]}) == [{"tp": 2}, {"pp": 2}]


def test_model_and_train_keys_can_be_axes() -> None:
    made = combinations({"train.seq_len": [32, 64], "model.num_layers": 8})
    assert made == [
        {"train.seq_length": 32, "model.layers": 8},
        {"train.seq_length": 64, "model.layers": 8},
    ]


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"tpp": [1]}, "matrix.tpp: unknown key"),
        ({"tpp": [1]}, "did you mean 'tp'?"),
        ({"TP": [1]}, "did you mean 'tp'?"),
        ({"tp": []}, "matrix.tp: an empty list leaves nothing to run"),
        ({"tp": [1, "two"]}, "matrix.tp[1]: must be an integer (found 'two')"),
        ({"tp": True}, "matrix.tp: must be an integer (found true)"),
        ({"tp": 0}, "matrix.tp: must be at least 1 (found 0)"),
        ({"packing": ["thd"]}, f"matrix.packing[0]: must be one of {', '.join(DATA_PATHS)} (found 'thd')"),
        ({"packing": "rules"}, "matrix.packing: was removed (found 'rules'; what upstream refuses"),
        ({"packing": ["sft", "upstream_tests"]}, "checked by the command `harness contracts`; delete these cells"),
        ({"packing": "sft", "dtype": ["bf16", "fp8"]}, "matrix.dtype[1]: was removed (found 'fp8'; use bf16"),
        ({"tp": 1, "tensor_model_parallel_size": 1}, "given twice"),
        ({"layout": [{"tp": 1}, {"pp": 2}]}, "must set the same axes"),
        ({"layout": [{"tp": 1}], "tp": 2}, "already set by 'matrix.layout'"),
        ({"seq_length": [4, 8]}, "to use it as an axis, write 'train.seq_length'"),
        ({"tp": 1, "include": {"tp": 1}}, "matrix.include: must be a list of mappings"),
        ({"tp": 1, "include": [{}]}, "matrix.include[0]: sets no axis"),
        ({"tp": 1, "exclude": [{"pp": 1}]}, "matrix.exclude[0].pp: no row of the matrix sets this axis"),
        ({"train.seq_length": 1}, "matrix.train.seq_length: must be at least 4 (found 1)"),
        (["tp"], "matrix: must be a mapping"),
    ],
)
def test_a_wrong_axis_is_reported_with_what_is_allowed(section: Any, expected: str) -> None:
    assert any(expected in text for text in complaints(section)), complaints(section)
