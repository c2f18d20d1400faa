from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from harness.core.cell.config import NOISE, ModelConfig
from harness.core.cell.identity import cell_id, cell_name
from harness.core.cell.layout import Layout
from harness.core.outcomes import Rejection
from harness.core.run.run_plan import Expansion
from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand
from harness.matrix.expansion.resolve import Resolver, combinations_of
from harness.matrix.problems import Problems
from harness.matrix.rules.table import rejections
from tests.matrix.helpers import expand_axes, matrix_of, names, problems_of

PACKINGS = ["unpacked", "reference", "sft"]


def added(expansion: Expansion) -> list[str]:
    return [cell.id for cell in expansion.cells if cell.role == "control"]


def test_sequence_parallel_defaults_to_on_exactly_when_tp_is_above_one() -> None:
    made = expand_axes({"tp": [1, 2], "packing": "sft"})
    assert [(c.config.layout.tp, c.config.layout.sp) for c in made.cells if c.role == "cell"] == [(1, False), (2, True)]
    made = expand_axes({"tp": 2, "sp": [False, "auto"], "packing": "sft"})
    assert names(made) == ["tp2-pp1-cp1-nosp-sft", "tp2-pp1-cp1-sft"]


def test_axes_of_a_cell_are_resolved_values_of_the_axes_in_the_matrix() -> None:
    made = expand_axes({"packing": "sft", "sp": "auto", "tp": 2, "pad_seq_to_mult": "auto", "train.steps": [1]})
    cell = next(cell for cell in made.cells if cell.role == "cell")
    assert cell.axes == {
        "tp": 2,
        "pp": 1,
        "cp": 1,
        "packing": "sft",
        "sp": True,
        "pad_seq_to_mult": "auto",
        "train.steps": 1,
    }


def test_a_control_in_the_matrix_is_used_and_a_missing_one_is_added() -> None:
    made = expand_axes({"tp": [1, 2], "packing": PACKINGS})
    assert added(made) == []
    assert {cell.control for cell in made.cells[1:]} == {made.cells[0].id}
    assert made.cells[0].control is None

    made = expand_axes({"tp": 2, "packing": "sft"})
    control = made.cells[0]
    assert (control.role, control.control, cell_name(control.config)) == (
        "control",
        None,
        "tp1-pp1-cp1-unpacked",
    )
    assert control.axes == {"tp": 1, "pp": 1, "cp": 1, "packing": "unpacked"}
    assert made.cells[1].control == control.id


def test_an_added_control_runs_the_attention_of_its_group() -> None:
    made = expand_axes({"packing": "sft", "attention": ["reference", "auto"]})
    by_id = {cell.id: cell for cell in made.cells}
    held = [(cell, by_id[cell.control]) for cell in made.cells if cell.control]
    assert [cell.config.attention for cell, _ in held] == ["reference", "auto"]
    for cell, control in held:
        assert (control.role, control.control) == ("control", None)
        assert control.config.attention == control.axes["attention"] == cell.config.attention


def test_no_control_has_a_control() -> None:
    moe = [None, {"capacity_factor": 1.0}]
    kernels = {"packing": ["unpacked", "reference", "sft"], "attention": ["te", "varlen"], "dtype": "bf16"}
    for axes in (kernels, {"packing": "reference", "dp": [1, 2], "micro_batch_size": 2, "model.moe": moe}):
        made = expand_axes(axes)
        by_id = {cell.id: cell for cell in made.cells}
        controls = [by_id[cell.control] for cell in made.cells if cell.control]
        assert len({cell.id for cell in controls}) == 2
        for control in controls:
            assert (control.control, control.config.data_path, control.config.layout) == (None, "unpacked", Layout())
            assert NOISE in control.config.canaries


def test_cells_on_another_device_form_another_group() -> None:
    made = expand_axes({"packing": "sft", "device": ["auto", "cpu", "cuda"]})
    assert {cell.group for cell in made.cells} == {"fp32", "fp32-cpu", "fp32-cuda"}
    assert len(added(made)) == 3


def test_every_dtype_and_every_model_or_train_variant_has_its_own_group_and_control() -> None:
    made = expand_axes(
        {"packing": ["sft"], "dtype": ["fp32", "bf16"], "train.seq_length": [32, 64], "model.layers": [2]}
    )
    assert {cell.group for cell in made.cells} == {
        f"{dtype}{length}-layers2" for dtype in ("fp32", "bf16") for length in ("-seq_length32", "")
    }
    assert len(added(made)) == 4
    by_id = {cell.id: cell for cell in made.cells}
    for cell in made.cells:
        if cell.control:
            control = by_id[cell.control].config
            own = cell.config
            assert (control.model, control.train, control.documents, control.dtype) == (
                own.model,
                own.train,
                own.documents,
                own.dtype,
            )
            assert control.layout == Layout()
    assert made.cells[0].config.model == ModelConfig(layers=2)


def test_models_of_one_name_and_other_sizes_have_their_own_controls() -> None:
    models = {"model.mla": [{"v_head_dim": 8}, {"v_head_dim": 12}], "model.moe": [{"ffn": 32}, {"ffn": 64}]}
    for axis, values in models.items():
        expansion = expand_axes({"packing": ["sft"], "cp": [2], axis: values})
        controls = {cell.id: cell.config.model for cell in expansion.cells if cell.role == "control"}
        tested = [cell for cell in expansion.cells if cell.role == "cell"]
        assert len(controls) == len(tested) == 2
        assert all(controls[str(cell.control)] == cell.config.model for cell in tested)


def test_a_row_that_leaves_out_a_train_axis_joins_the_group_of_the_section_value() -> None:
    made = expand_axes({"include": [{"packing": "sft", "train.seq_length": 64}, {"packing": "reference"}]})
    assert {cell.group for cell in made.cells} == {"fp32"}
    assert names(made) == ["tp1-pp1-cp1-sft", "tp1-pp1-cp1-reference"]


def test_rows_may_name_another_built_in_mix_and_have_their_own_control() -> None:
    made = expand_axes({"include": [{"packing": "sft"}, {"packing": "sft", "documents": "uncut"}]})
    assert names(made) == ["tp1-pp1-cp1-sft", "tp1-pp1-cp1-sft-uncut"]
    assert len(added(made)) == 2
    cut, uncut = made.cells[1].config.documents, made.cells[3].config.documents
    assert (max(cut.lengths), max(uncut.lengths)) == (73, 63)
    assert made.cells[3].axes["documents"] == "uncut"
    of_file = expand_axes({"packing": "sft", "documents": "uncut"}, documents={"mode": "file", "lengths": [5]})
    assert of_file.cells[1].config.documents == uncut


def test_every_cell_gets_the_same_documents_made_for_the_largest_cp() -> None:
    made = expand_axes({"cp": [1, 4], "packing": PACKINGS})
    assert len({cell.config.documents for cell in made.cells}) == 1
    assert 2 * 4 - 1 in made.cells[0].config.documents.lengths


def test_combinations_that_resolve_to_the_same_cell_are_merged() -> None:
    assert names(expand_axes({"tp": [1, 1], "packing": "sft"})) == ["tp1-pp1-cp1-sft"]
    # Packing options do not affect unpacked cells.
    made = expand_axes({"pad_seq_to_mult": [4, 8], "packing": ["unpacked", "reference"]})
    assert names(made) == ["tp1-pp1-cp1-unpacked", "tp1-pp1-cp1-reference-pad4", "tp1-pp1-cp1-reference-pad8"]


def test_constraints_drop_combinations_and_count_them() -> None:
    made = expand_axes(
        {"tp": [1, 2], "pp": [1, 2, 4], "packing": PACKINGS},
        constraints=["world_size <= 4", 'packing != "unpacked" or pp == 1'],
    )
    assert made.excluded == {"world_size <= 4": 3, 'packing != "unpacked" or pp == 1': 3}
    assert len(names(made)) == 18 - 6


def test_constraints_can_use_defaults_and_section_values() -> None:
    assert len(names(expand_axes({"tp": [1, 2], "packing": "sft"}, constraints=["dp == 1 and vpp == 1"]))) == 2
    made = expand_axes(
        {"cp": [1, 2], "train.seq_length": [64, 128], "packing": "sft"},
        constraints=["train.seq_length >= 64 * cp", "model.layers == 4"],
    )
    assert len(names(made)) == 3


def test_a_rule_rejects_with_its_id_source_and_arithmetic() -> None:
    made = expand_axes({"pp": [1, 3], "packing": "sft"})
    (rejected,) = made.rejected
    assert rejected.id.startswith("tp1-pp3-cp1-sft-")
    assert rejected.rejections == (
        Rejection(
            rule="layout.layers-by-pp",
            reason="model.layers 4 is not divisible by pp 3 x vpp 1 = 3: 4 = 1 * 3 + 1",
            source="Megatron-LM TransformerConfig.__post_init__ and get_num_layers_to_build: what stages and chunks "
            "share evenly",
        ),
    )


def test_a_rejected_cell_lists_every_rule_that_forbids_it() -> None:
    made = expand_axes({"include": [{"tp": 3, "vpp": 2, "packing": "sft"}, {"packing": "sft"}]})
    assert {item.rule for item in made.rejected[0].rejections} >= {"layout.heads-by-tp", "layout.vpp-needs-pp"}


def test_more_ranks_than_the_launch_allows_are_rejected() -> None:
    made = expand_axes({"tp": [1, 2], "pp": 4, "packing": "sft"}, launch={"max_ranks": 4})
    assert made.rejected[0].rejections[0].reason == (
        "tp 2 x pp 4 x cp 1 x dp 1 = 8 ranks, more than launch.max_ranks = 4"
    )


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"matrix": {}}, "nothing left to run: the matrix has no combination"),
        ({"matrix": {"tp": [1, 2]}}, "a combination has no packing"),
        ({"matrix": {"tp": 1, "packing": "sft", "exclude": [{"tp": 1}]}}, "the matrix has no combination"),
        ({"matrix": {"packing": "sft"}, "constraints": ["tp > 1"]}, "constraints drop every combination: 'tp > 1' (1)"),
        ({"matrix": {"tp": [3, 5], "packing": "sft"}}, "rules reject every cell: layout.heads-by-tp (2)"),
        ({"matrix": {"packing": "sft"}, "constraints": ["packing < 3"]}, "'packing < 3' cannot be evaluated"),
        ({"matrix": {"packing": "sft", "model.heads": [8, 3]}}, "heads3: hidden 64 is not divisible by heads 3"),
    ],
)
def test_an_expansion_with_nothing_to_run_is_an_input_error(sections: dict[str, Any], expected: str) -> None:
    assert any(expected in str(problem) for problem in problems_of(**sections)), problems_of(**sections)


def test_an_id_too_long_for_a_folder_is_a_problem_that_says_what_to_shorten() -> None:
    """Every name in it is short enough; the sum is not."""
    stack, lengths = "s" * 64, "d" * 64
    axes = {"packing": ["sft"], "stack": [stack], "documents": [lengths]}
    more = {"model.hidden": [128], "model.ffn": [256], "model.vocab": [256], "train.steps": [3], "model.layers": [4]}
    more |= {"model.heads": [8], "model.kv_heads": [4], "train.lr": [0.0123], "train.seq_length": [128]}
    sections = {
        "stacks": {stack: "megatron-core==0.19.2"},
        "documents": {"mode": "adversarial", "lists": {lengths: [8, 8]}},
    }
    assert expand(matrix_of(matrix={**axes, "model.hidden": [128]}, **sections)).cells
    [problem] = problems_of(matrix={**axes, **more, "dtype": ["bf16"]}, **sections)
    assert "the id of a cell has 2" in str(problem)
    assert "found tp1-pp1-cp1" in str(problem)
    assert f"allowed: 200; shorten the axes of model, train and documents, '{lengths}-" in str(problem)


def test_xfail_marks_the_cells_whose_name_matches() -> None:
    made = expand_axes(
        {"pp": [1, 2], "packing": ["reference", "sft"]},
        xfail=[{"pattern": "tp1-pp2-*-sft", "reason": "first"}, {"pattern": "*-sft", "reason": "second"}],
    )
    marked = {cell_name(cell.config): cell.xfail.reason for cell in made.cells if cell.xfail}
    assert marked == {"tp1-pp2-cp1-sft": "first", "tp1-pp1-cp1-sft": "second"}


def test_cells_and_controls_that_may_be_rejected_say_why() -> None:
    entries = [{"pattern": "*-unpacked", "reason": "no layer"}, {"pattern": "*pp2*", "reason": "no stages"}]
    made = expand_axes({"pp": [1, 2], "packing": "sft"}, may_reject=entries)
    allowed = {cell_name(cell.config): cell.may_reject for cell in made.cells}
    assert allowed == {
        "tp1-pp1-cp1-unpacked": "no layer",
        "tp1-pp1-cp1-sft": "",
        "tp1-pp2-cp1-sft": "no stages",
    }
    (problem,) = problems_of(matrix={"packing": "sft"}, may_reject=[{"pattern": "*-core017", "reason": "r"}])
    assert (problem.key, problem.message) == ("may_reject[0].pattern", "matches no cell")


def test_an_xfail_that_matches_no_cell_is_a_problem() -> None:
    axes = {"pp": [1, 3], "packing": "sft"}
    (problem,) = problems_of(matrix=axes, xfail=[{"pattern": "tp8-*", "reason": "r"}])
    assert (problem.key, problem.message) == ("xfail[0].pattern", "matches no cell")
    (problem,) = problems_of(matrix=axes, xfail=[{"pattern": "tp1-pp3-*", "reason": "r"}])
    assert problem.hint == "it matches rejected cells only"


def test_the_smoke_matrix_matches_its_comments(root: Path) -> None:
    made = expand(read_matrix(root / "matrices" / "smoke.yaml"))
    configs = [cell.config for cell in made.cells]
    assert len(configs) == 42
    assert max(config.layout.world_size for config in configs) == 8
    grid = {(c.layout.tp, c.layout.pp, c.layout.cp, c.data_path) for c in configs}
    expected = {(tp, pp, cp, p) for tp in (1, 2) for pp in (1, 2, 4) for cp in (1, 2) for p in PACKINGS}
    assert expected - grid == {(2, 4, 2, packing) for packing in PACKINGS}
    assert {c.data_path for c in configs if c.micro_batch_size == 2} == {"reference", "sft"}
    assert {c.layout.vpp for c in configs} == {1, 2}
    assert {c.layout.dp for c in configs} == {1, 2}
    assert added(made) == []
    (rejected,) = made.rejected
    written = (root / "matrices" / "smoke.yaml").read_text().splitlines()
    assert "pad_seq_to_mult: 1" in written[(rejected.line or 0) - 1]
    assert rejected.rejections[0].reason.endswith("a document of 1 token takes 1, and 1 % 4 = 1")


def test_the_cp_ranks_of_every_smoke_cell_hold_every_slot_once(root: Path) -> None:
    for cell in expand(read_matrix(root / "matrices" / "smoke.yaml")).cells:
        cp = cell.config.layout.cp
        for batch in (batch for replica in cell.config.micro_batches(0) for batch in replica):
            held = [slot for rank in range(cp) for row in batch.local_slots(cp, rank) for slot in row]
            assert sorted(held) == list(range(batch.slots))


def test_only_controls_measure_noise() -> None:
    made = expand_axes({"dtype": ["fp32", "bf16"], "tp": [1, 2], "packing": ["unpacked", "reference"]})
    measuring = {cell.id for cell in made.cells if NOISE in cell.config.canaries}
    assert measuring == {cell.control for cell in made.cells if cell.control}
    assert len(measuring) == 2


def test_name_and_rejections_of_a_cell_do_not_depend_on_other_cells() -> None:
    axes: dict[str, list[Any]] = {
        "packing": [*PACKINGS, "skyrl"],
        "tp": [1, 3],
        "cp": [1, 2],
        "sp": ["auto", False],
        "micro_batch_size": [1, 2],
        "dtype": ["fp32", "bf16"],
        "attention": ["auto", "te"],
        "device": ["auto", "cpu"],
        "pad_seq_to_mult": ["auto", 6],
        "calculate_per_token_loss": [True, False],
    }
    made = expand_axes(dict(axes))
    alone: dict[str, tuple[Rejection, ...]] = {}
    for values in itertools.product(*axes.values()):
        matrix = matrix_of(matrix=dict(zip(axes, values)))
        (combination,), _ = combinations_of(matrix, Problems(matrix.file, matrix.lines))
        config = Resolver(matrix, largest_cp=2).config(combination.values)
        alone[cell_id(config)] = rejections(config)
    assert {cell.id for cell in made.cells if cell.role == "cell"} == {
        name for name, found in alone.items() if not found
    }
    assert {cell.id: cell.rejections for cell in made.rejected} == {
        name: found for name, found in alone.items() if found
    }


def test_a_lifted_rule_rejects_no_cell_and_its_control_lifts_nothing() -> None:
    axes = {"packing": "unpacked", "cp": 2, "calculate_per_token_loss": False, "lift": "loss.per-token-with-cp"}
    made = expand_axes(axes, documents={"mode": "file", "lengths": [3, 8]})
    assert names(made) == ["tp1-pp1-cp2-unpacked-lift-loss.per-token-with-cp-meanloss"]
    assert {cell.config.lift for cell in made.cells if cell.role == "control"} == {""}


def test_a_lifted_rule_must_exist() -> None:
    (problem,) = problems_of(matrix={"packing": "unpacked", "lift": ["", "loss.per-token-cp"]})
    assert (problem.key, problem.message) == ("matrix.lift", "no such rule")
    assert problem.hint == "did you mean 'loss.per-token-with-cp'?"


@pytest.mark.parametrize(
    ("rule", "why"), [("stack.model", "the stack takes no argument"), ("layout.world-size", "raise launch.max_ranks")]
)
def test_a_rule_that_cannot_be_lifted_says_why(rule: str, why: str) -> None:
    (problem,) = problems_of(matrix={"packing": "unpacked", "lift": ["", rule]})
    assert (problem.key, problem.message) == ("matrix.lift", "this rule cannot be lifted")
    assert why in (problem.hint or "")


def test_a_rule_of_nodes_that_upstream_does_not_share_can_be_lifted() -> None:
    assert (
        expand_axes({"packing": "sft", "lift": "attention.te-padding"}).cells[1].config.lift == "attention.te-padding"
    )
