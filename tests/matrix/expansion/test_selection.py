from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.campaign.selection import select
from harness.core.cell.identity import cell_name
from harness.core.errors import InputError
from harness.core.run.run_plan import Expansion, PlannedCell, Selection
from harness.matrix.load import resolved
from tests.matrix.helpers import expand_axes, matrix_of, names, problems_of

AXES: dict[str, Any] = {
    "tp": [1, 2, 4],
    "pp": [1, 2, 4],
    "cp": [1, 2],
    "sp": ["auto", False],
    "micro_batch_size": [1, 2],
    "packing": ["unpacked", "reference", "sft"],
}
LIMIT = "world_size <= 16"
EVERYTHING = "tp >= 2, pp >= 4, cp >= 2 with odd lengths, on 16 ranks"


def own(expansion: Expansion) -> list[PlannedCell]:
    return [cell for cell in expansion.cells if cell.role == "cell"]


def tuples_of(cells: list[PlannedCell], axes: list[str], strength: int) -> set[tuple[tuple[str, Any], ...]]:
    """Every t-tuple of resolved axis values that a cell has, by brute force from the axes in the plan."""
    return {part for cell in cells for part in combinations([(axis, cell.axes[axis]) for axis in axes], strength)}


def selection_of(expansion: Expansion) -> Selection:
    assert expansion.selection is not None
    return expansion.selection


axis_lists = st.fixed_dictionaries(
    {name: st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True) for name, values in AXES.items()},
    optional={"vpp": st.just([1, 2]), "dtype": st.just(["fp32", "bf16"]), "train.seq_length": st.just([64, 128])},
)


@settings(deadline=None, max_examples=60)
@given(axis_lists, st.integers(1, 3), st.sampled_from([[], ["tp * cp <= 4"], ["pp == 1 or cp == 1", LIMIT]]))
def test_only_allowed_cells_run_they_cover_every_tuple_and_must_cover_cells_are_kept(
    axes: dict[str, Any], strength: int, constraints: list[str]
) -> None:
    try:
        full = expand_axes(axes, constraints=constraints)
    except InputError:
        return  # nothing is left of it
    made = expand_axes(axes, constraints=constraints, select={"covering": strength})
    every = {cell.id for cell in own(full)}
    assert {cell.id for cell in own(made)} <= every
    assert made.rejected == full.rejected
    varying = [name for name in axes if len({str(cell.axes[name]) for cell in [*own(full)]}) > 1]
    size = min(strength, len(varying))
    assert tuples_of(own(made), varying, size) == tuples_of(own(full), varying, size)
    for holds in (stages, odd, both):
        for packing in ("reference", "sft"):
            there = any(holds(cell) and cell.config.data_path == packing for cell in own(full))
            assert there == any(holds(cell) and cell.config.data_path == packing for cell in own(made))
    found = selection_of(made)
    assert (found.cells, found.allowed, found.covered) == (len(own(made)), len(every), found.possible)


def stages(cell: PlannedCell) -> bool:
    return cell.config.layout.tp >= 2 and cell.config.layout.pp >= 4


def odd(cell: PlannedCell) -> bool:
    return cell.config.layout.cp >= 2 and any(length % 2 for length in cell.config.documents.lengths)


def both(cell: PlannedCell) -> bool:
    return stages(cell) and odd(cell) and cell.config.layout.world_size >= 16


def test_a_plan_says_how_many_pairs_are_covered() -> None:
    made = expand_axes(AXES, constraints=[LIMIT], select="covering")
    found = selection_of(made)
    pairs = tuples_of(own(expand_axes(AXES, constraints=[LIMIT])), list(AXES), 2)
    # sp is off at tp 1 and cannot be on there.
    assert (
        found.text == f"covering 2: {found.cells} of {found.allowed} cells cover {len(pairs)} of {len(pairs)} pairs "
        "(1 not possible)"
    )
    assert found.cells < found.allowed / 4
    assert found.left_out == found.allowed - found.cells


def test_the_same_file_gives_the_same_selection_and_so_does_one_written_in_another_order() -> None:
    turned = {name: AXES[name][::-1] for name in reversed(AXES)}
    first = expand_axes(AXES, constraints=[LIMIT], select="covering")
    assert names(first) == names(expand_axes(AXES, constraints=[LIMIT], select="covering"))
    assert set(names(first)) == set(names(expand_axes(turned, constraints=[LIMIT], select="covering")))


def test_tied_axes_count_as_one_axis() -> None:
    layouts = [{"tp": 1, "pp": 1}, {"tp": 2, "pp": 2}, {"tp": 4, "pp": 1}]
    axes = {"layout": layouts, "cp": [1, 2], "packing": ["reference", "sft"], "micro_batch_size": [1, 2]}
    made = expand_axes(axes, select="covering")
    for layout in layouts:
        for axis in ("cp", "packing", "micro_batch_size"):
            cells = [cell for cell in own(made) if (cell.axes["tp"], cell.axes["pp"]) == (layout["tp"], layout["pp"])]
            assert {cell.axes[axis] for cell in cells} == set(axes[axis])
    assert selection_of(made).impossible == {}


def test_a_pair_that_a_rule_forbids_is_counted_under_its_rule() -> None:
    made = expand_axes({"tp": [1, 3], "pp": [1, 2], "packing": ["reference", "sft"]}, select="covering")
    assert selection_of(made).impossible == {"rule layout.heads-by-tp": 4}
    assert selection_of(made).text.endswith("pairs (4 not possible)")


def test_include_rows_and_cells_of_keep_are_always_kept() -> None:
    keep = ["tp4-pp4-cp1-nosp-sft", {"tp": 2, "pp": 1, "packing": "sft", "sp": "auto"}]
    axes = {
        **AXES,
        "dp": 1,
        "include": [{"dp": 2, "tp": 2, "packing": "reference"}, {"dp": 2, "tp": 1, "packing": "sft"}],
    }
    made = expand_axes(axes, constraints=[LIMIT], select={"covering": 2, "keep": keep})
    run = names(made)
    assert {"tp2-pp1-cp1-dp2-reference", "tp1-pp1-cp1-dp2-sft", "tp4-pp4-cp1-nosp-sft"} <= set(run)
    named = [f"tp2-pp1-cp{cp}-sft{size}" for cp in (1, 2) for size in ("", "-mbs2")]
    assert set(named) <= set(run)
    kept = selection_of(made).kept
    assert (kept["include rows"], kept["keep"]) == (2, 5)


def test_an_include_row_that_is_a_combination_of_the_matrix_too_is_kept() -> None:
    axes = {"tp": [1, 2], "pp": [1, 2, 4], "packing": ["sft", "reference"], "sp": "auto"}
    assert "tp1-pp2-cp1-sft" not in names(expand_axes(axes, select={"covering": 1}))
    row = {"tp": 1, "pp": 2, "packing": "sft", "sp": False}  # what `auto` resolves to
    assert "tp1-pp2-cp1-sft" in names(expand_axes({**axes, "include": [row]}, select={"covering": 1}))


def test_every_data_path_in_every_stack_keeps_the_cells_that_expose_most_bugs() -> None:
    stacks = {"old": {"packages": ["megatron-core==0.18.2"]}}
    axes = {**AXES, "stack": ["default", "old"], "train.seed": [1, 2, 3]}
    made = expand_axes(axes, constraints=[LIMIT], stacks=stacks, select={"covering": 1})
    found = {(cell.config.stack, cell.config.data_path) for cell in own(made) if both(cell)}
    assert found == {(stack, packing) for stack in ("default", "old") for packing in ("reference", "sft")}
    assert selection_of(made).kept == {EVERYTHING: 4, "tp >= 2 with pp >= 4": 4, "cp >= 2 with odd lengths": 4}


def test_even_lengths_are_not_odd() -> None:
    documents = {"mode": "file", "lengths": [16, 8]}
    made = expand_axes(AXES, constraints=[LIMIT], documents=documents, select="covering")
    kept = selection_of(made).kept
    assert (kept[EVERYTHING], kept["cp >= 2 with odd lengths"], kept["tp >= 2 with pp >= 4"]) == (0, 0, 2)


def test_a_known_failure_of_a_cell_that_is_left_out_is_not_an_error() -> None:
    xfail = [{"pattern": "tp4-pp1-*", "reason": "r"}, {"pattern": "tp2-pp2-*", "reason": "r"}]
    run = names(expand_axes(AXES, select={"covering": 1}, constraints=[LIMIT]))
    assert not all(any(name.startswith(entry["pattern"][:-1]) for name in run) for entry in xfail)
    expand_axes(AXES, select={"covering": 1}, constraints=[LIMIT], xfail=xfail)


def test_picking_a_cell_that_is_left_out_says_so() -> None:
    made = expand_axes(AXES, constraints=[LIMIT], select="covering")
    gone = set(names(expand_axes(AXES, constraints=[LIMIT]))) - set(names(made))
    with pytest.raises(InputError, match="cells are left out, `select: full` plans them"):
        select(made, [min(gone)])
    assert select(made, [cell_name(own(made)[0].config)]).selection is None


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("pairwise", "select: unknown selection (found 'pairwise'; allowed: full, covering, or a mapping like"),
        (2, "select: unknown selection (found 2"),
        ({"covering": 0}, "select.covering: must be at least 1 (found 0)"),
        ({"covering": 7}, "select.covering: must be at most 6"),
        ({"covering": "2"}, "select.covering: must be an integer"),
        ({"strength": 2}, "select.strength: unknown key"),
        ({"keep": ["tp8-*"]}, "select.keep[0]: matches no cell (found 'tp8-*'"),
        ({"keep": [{"tp": 3}]}, "it matches rejected cells only"),
        ({"keep": [{"tpp": 3}]}, "select.keep[0].tpp: unknown key"),
        ({"keep": [{"tp": "3"}]}, "select.keep[0].tp: must be an integer"),
        ({"keep": [{}]}, "select.keep[0]: sets no axis"),
    ],
)
def test_an_invalid_selection_is_an_error(section: Any, expected: str) -> None:
    problems = [str(problem) for problem in problems_of(matrix={"tp": [1, 3], "packing": "sft"}, select=section)]
    assert any(expected in problem for problem in problems), problems


def test_a_selection_with_interleaved_cells_is_an_error() -> None:
    axes = {"packing": "reference", "stack": ["old", "new"]}
    stacks = {name: {"packages": [f"megatron-core==0.{name == 'new':d}"]} for name in ("old", "new")}
    checks = {"throughput": {"slower_than": "old"}}
    (problem,) = problems_of(matrix=axes, stacks=stacks, checks=checks, select="covering")
    assert "leave out cells that others are interleaved with" in str(problem)


def test_the_resolved_matrix_selects_the_same() -> None:
    keep = ["tp4-*-sft", {"tensor_model_parallel_size": 2, "pp": 2}]
    values = {"name": "t", "matrix": AXES, "constraints": [LIMIT]}
    for section in ("full", "covering", {"covering": 3, "keep": keep}):
        matrix = matrix_of({**values, "select": section})
        again = matrix_of(resolved(matrix))
        assert again.covering == matrix.covering
