from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from harness.core.errors import InputError, Problem
from harness.core.packing.documents import DocumentsConfig
from harness.core.tolerances import Override, tolerances_for
from harness.matrix.expansion.expand import expand
from harness.matrix.load import load, resolved
from tests.matrix.helpers import expand_axes, matrix_of, no_file, problems_of

AXES = {"packing": ["sft"]}


def texts(**sections: Any) -> list[str]:
    return [str(problem) for problem in problems_of(**sections)]


def test_sections_become_the_types_of_core() -> None:
    matrix = matrix_of(
        matrix=AXES,
        model={"num-layers": 8, "hidden_size": 128, "num_attention_heads": 4, "num_query_groups": 2, "tied": True},
        train={"train_iters": 5, "global_batch_size": 16, "seq_len": 128, "lr": 1},
        launch={"parallel_ranks": 4, "deadline_s": 30, "max_ranks": 8},
        checks={"numerics": {"step_loss": 1e-3}},
        packing_options={"pad_seq_to_mult": 8},
    )
    assert (matrix.model.layers, matrix.model.hidden, matrix.model.kv_heads, matrix.model.tied) == (8, 128, 2, True)
    assert (matrix.train.steps, matrix.train.global_batch, matrix.train.seq_length) == (5, 16, 128)
    assert (matrix.launch.parallel_ranks, matrix.launch.deadline_s, matrix.launch.max_ranks) == (4, 30, 8)
    assert matrix.tolerances.numerics == {"step_loss": Override(value=1e-3)}
    assert matrix.options.pad_seq_to_mult == 8


def test_a_bound_may_have_unit_and_direction() -> None:
    numerics = {"step_loss": {"value": 1, "unit": "absolute", "direction": "above"}, "ratio_screen": 0.01}
    matrix = matrix_of(matrix=AXES, checks={"numerics": numerics})
    assert matrix.tolerances.numerics["step_loss"] == Override(value=1.0, unit="absolute", direction="above")
    assert resolved(matrix)["checks"]["numerics"] == numerics
    bounds = tolerances_for("fp32", matrix.tolerances)
    assert (bounds.step_loss.unit, bounds.step_loss.direction, bounds.ratio_screen) == ("absolute", "above", 0.01)
    assert bounds.step_loss.origin == "matrix checks.numerics"


def test_the_deadline_reaches_every_cell() -> None:
    assert {cell.config.deadline_s for cell in expand_axes(AXES, launch={"deadline_s": 7}).cells} == {7}


def test_an_unquoted_and_a_quoted_expiry_date_are_the_same() -> None:
    for expires in (date(2027, 1, 31), "2027-01-31"):
        matrix = matrix_of(matrix=AXES, xfail=[{"pattern": "*", "reason": "r", "expires": expires}])
        assert matrix.xfail[0].expires == "2027-01-31"


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"modle": {}}, "modle: unknown key"),
        ({"modle": {}}, "did you mean 'model'?"),
        ({"tp": 1}, "it is an axis: write it under 'matrix:'"),
        ({"upstream_tests": {}}, "upstream_tests: was removed (what upstream refuses"),
        ({"matrix": AXES | {"forbidden": "cp-mean-loss"}}, "matrix.forbidden: was removed (what upstream refuses"),
        ({"matrix": {"include": [AXES | {"upstream_tests": "a"}]}}, "matrix.include[0].upstream_tests: was removed"),
        ({"matrix": AXES | {"model.cuda-graphs": [True]}}, "matrix.model.cuda-graphs: was removed (delete it"),
        ({"model": {"cuda_graphs": False}}, "model.cuda_graphs: was removed (delete it"),
        ({"train": {"dtype": "bf16"}}, "it is an axis: write it under 'matrix:'"),
        ({"model": {"layers": "4"}}, "model.layers: must be an integer (found '4')"),
        ({"model": {"layers": True}}, "model.layers: must be an integer (found true)"),
        ({"model": {"layers": 4, "num_layers": 4}}, "model.num_layers: given twice"),
        ({"model": {"hiden": 4}}, "did you mean 'hidden'?"),
        ({"model": {"num_layer": 4}}, "did you mean 'num_layers'?"),
        ({"model": {"num_experts": 4}}, "did you mean 'moe.num_experts'?"),
        ({"model": None}, "model: must be a mapping (found nothing; e.g. model: {layers: ...})"),
        ({"model": {"heads": 6, "kv_heads": 2}}, "hidden 64 is not divisible by heads 6"),
        ({"model": {"kv_heads": 3}}, "heads 8 is not divisible by kv_heads 3"),
        ({"model": {"hidden": 24}}, "even head size: 24 / 8 = 3"),
        ({"model": {"rotary_percent": 0.4}}, "rotary positions turn an even number of elements: 0.4 x 8 = 3"),
        ({"model": {"no_rope_freq": 3}}, "layers 4 is not divisible by no_rope_freq 3, as upstream asks"),
        (
            {"model": {"position_embedding": "none", "rope_scaling": True}},
            "is for rotary positions, and position_embedding is none",
        ),
        ({"model": {"biases": True, "qkv_bias": True}}, "biases already gives queries, keys and values one"),
        ({"model": {"hidden": 60}}, "hidden 60 is not divisible by heads 8; set head_size too"),
        ({"model": {"hidden": 60, "head_size": 7}}, "even head size: 7"),
        ({"train": {"steps": -1}}, "train.steps: must be at least 0 (found -1)"),
        ({"train": {"lr": float("inf")}}, "train.lr: must be finite"),
        (
            {"documents": {"mode": "mock"}},
            "allowed: adversarial, uncut, plain, multi_turn, delimited, images, distribution, file",
        ),
        ({"documents": {"mode": "adversarial", "path": "x"}}, "documents.path: unknown key"),
        ({"documents": {"mode": "distribution"}}, "documents.max_seq_len: is required"),
        ({"documents": {"mode": "file"}}, "needs either path or lengths"),
        ({"documents": {"mode": "file", "path": "x", "lengths": [1]}}, "needs either path or lengths"),
        ({"documents": {"mode": "file", "lengths": [0]}}, "documents.lengths[0]: must be at least 1"),
        (
            {"documents": {"mode": "distribution", "min_seq_len": 9, "mean_seq_len": 5, "max_seq_len": 8}},
            "min_seq_len <= mean_seq_len <= max_seq_len does not hold (found 9, 5.0, 8)",
        ),
        ({"packing_options": {"pad_seq_to_mult": 0}}, "packing_options.pad_seq_to_mult: must be at least 1"),
        ({"constraints": 3}, "constraints: must be a list of expressions"),
        ({"constraints": ["tp < 2", "xx < 2"]}, "constraints[1]: column 1: unknown name 'xx'"),
        ({"stacks": ["other"]}, "stacks: must be a mapping of names to definitions"),
        ({"cluster": ""}, "cluster: must not be empty"),
        ({"cluster": 3}, "cluster: must be text (found 3)"),
        ({"launch": {"cells_per_alocation": 1}}, "did you mean 'cells_per_allocation'?"),
        ({"launch": {"cells_per_allocation": 0}}, "launch.cells_per_allocation: must be at least 1 (found 0)"),
        ({"launch": {"throttle": "4"}}, "launch.throttle: must be an integer (found '4')"),
        ({"checks": {"numerics": {"loss": 1e-3}}}, "checks.numerics.loss: must be one of document_loss"),
        ({"checks": {"numerics": {"step_loss": 0}}}, "checks.numerics.step_loss: must be above 0"),
        (
            {"checks": {"numerics": {"step_loss": 1e7}}},
            "checks.numerics.step_loss: must be finite, and at most 1,000,000",
        ),
        ({"checks": {"numerics": {"step_loss": {"value": 1e7}}}}, "checks.numerics.step_loss.value: must be at most"),
        ({"checks": {"throughput": {"peak_tflops": {"bf16": 1e9}}}}, "peak_tflops.bf16: must be at most"),
        (
            {"checks": {"numerics": {"step_loss": "1e-3"}}},
            "checks.numerics.step_loss: must be a number, or a",
        ),
        ({"checks": {"numerics": {"step_loss": {"unit": "relative"}}}}, "checks.numerics.step_loss.value: is required"),
        (
            {"checks": {"numerics": {"step_loss": {"value": 1e-3, "unit": "percent"}}}},
            "unit: unknown value (found 'percent'; allowed: 'relative' or 'absolute')",
        ),
        (
            {"checks": {"numerics": {"step_loss": {"value": 1e-3, "direction": "up"}}}},
            "direction: unknown value (found 'up'; allowed: 'either', 'above' or 'below')",
        ),
        (
            {"checks": {"numerics": {"step_loss": {"value": 1e-3, "bound": 1}}}},
            "step_loss.bound: unknown key",
        ),
        (
            {"checks": {"numerics": {"activation": {"value": 1e-3, "direction": "above"}}}},
            "checks.numerics: activation is a distance of fingerprints, which has no sign",
        ),
        (
            {"checks": {"numerics": {"ratio_screen": {"value": 0.01, "unit": "absolute"}}}},
            "checks.numerics: ratio_screen is a plain number",
        ),
        ({"xfail": {}}, "xfail: must be a list"),
        ({"may_reject": [{"pattern": "*"}]}, "may_reject[0].reason: is required"),
        ({"xfail": [{"pattern": "*"}]}, "xfail[0].reason: is required"),
        ({"xfail": [{"pattern": "*", "reason": "r", "expires": "soon"}]}, "must be a date like 2027-01-31"),
        ({"name": "a/b"}, "name: must be 1 to 64 letters"),
        ({"name": 3}, "name: must be text (found 3)"),
    ],
)
def test_a_wrong_section_is_reported_with_what_is_allowed(sections: dict[str, Any], expected: str) -> None:
    found = texts(**{"name": "t", "matrix": AXES, **sections})
    assert any(expected in text for text in found), found


def test_all_problems_are_reported_at_once_in_the_order_of_their_lines() -> None:
    values = {"matrix": {"tp": ["x"]}, "name": "t", "train": {"steps": -1}, "constraints": ["qq"]}
    lines = {("matrix",): 1, ("matrix", "tp"): 2, ("matrix", "tp", 0): 3, ("train",): 9, ("constraints", 0): 5}
    with pytest.raises(InputError) as caught:
        load(values, file="t.yaml", lines=lines, read_lengths=no_file)
    assert [(item.line, item.key) for item in caught.value.problems] == [
        (3, "matrix.tp[0]"),
        (5, "constraints[0]"),
        (9, "train.steps"),
    ]


def test_a_repeated_constraint_is_tested_once() -> None:
    matrix = matrix_of({"name": "t", "matrix": {"packing": "sft"}, "constraints": ["tp <= 8", "pp <= 8", "tp <= 8"]})
    assert [constraint.text for constraint in matrix.constraints] == ["tp <= 8", "pp <= 8"]


def test_a_problem_under_an_alias_shows_the_name_and_line_that_the_user_wrote() -> None:
    values = {"name": "t", "matrix": AXES, "model": {"num-layers": 0}}
    with pytest.raises(InputError) as caught:
        load(values, file="t.yaml", lines={("model", "num-layers"): 4}, read_lengths=no_file)
    assert str(caught.value) == "t.yaml:4: model.num-layers: must be at least 1 (found 0)"


def test_lengths_of_a_file_come_from_the_reader_not_the_name_and_its_problems_are_kept() -> None:
    values = {"name": "t", "matrix": AXES, "documents": {"mode": "file", "path": "l.csv"}}
    matrix = load(values, file="t.yaml", lines={}, read_lengths=lambda name: (3, len(name)))
    assert matrix.documents == DocumentsConfig(mode="file", lengths=(3, 5))

    def broken(name: str) -> tuple[int, ...]:
        raise InputError(Problem(message="not a document length", file=name, line=7, found="'x'"))

    with pytest.raises(InputError, match=r"documents.path: l.csv line 7: not a document length \(found 'x'\)"):
        load(values, file="t.yaml", lines={}, read_lengths=broken)


def test_an_empty_file_and_a_file_without_a_mapping_are_input_errors() -> None:
    for values, expected in (
        (None, "the matrix file is empty"),
        ([1], "must be a mapping"),
        ({}, "matrix: is required"),
    ):
        with pytest.raises(InputError, match=expected):
            load(values, file="t.yaml", lines={}, read_lengths=no_file)


@pytest.mark.parametrize(
    "documents",
    [
        {"mode": "adversarial"},
        {"mode": "file", "lengths": [5, 70, 1]},
        {"mode": "distribution", "mean_seq_len": 20, "max_seq_len": 64},
    ],
)
def test_the_resolved_matrix_loads_to_the_same_cells(documents: dict[str, Any]) -> None:
    matrix = matrix_of(
        matrix={"tp": [1, 2], "cp": 2, "packing": ["sft", "reference"], "include": [{"dp": 2, "packing": "sft"}]},
        documents=documents,
        constraints=["tp * cp <= 4"],
        xfail=[{"pattern": "*-sft-pad8", "reason": "r", "expires": "2030-01-01"}],
        may_reject=[{"pattern": "*-sft-pad8", "reason": "r"}],
        packing_options={"pad_seq_to_mult": 8},
        launch={"parallel_ranks": 2, "cells_per_allocation": "auto", "throttle": 3, "time_limit_min": 9},
        cluster="lab",
    )
    again = matrix_of(resolved(matrix))
    assert expand(again) == expand(matrix)
    assert resolved(again) == resolved(matrix)
    assert (again.cluster, again.launch) == ("lab", matrix.launch)
