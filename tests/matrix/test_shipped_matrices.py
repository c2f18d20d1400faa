"""The nightly, weekly and triage matrices match their comments and docs/ci.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from harness.core.cell.identity import cell_name
from harness.core.run.run_plan import Expansion
from harness.inputs.matrix_file import read_matrix
from harness.launch.allocations import estimate
from harness.matrix.expansion.expand import expand
from harness.upstreams.table import DATA_PATHS


@pytest.fixture(scope="module")
def nightly(root: Path) -> Expansion:
    return expand(read_matrix(root / "matrices" / "nightly.yaml"))


def test_the_weekly_matrix_is_the_nightly_one_without_selection(root: Path, nightly: Expansion) -> None:
    texts = [(root / "matrices" / f"{name}.yaml").read_text() for name in ("nightly", "weekly")]
    of_night, of_week = (text[text.index("name: ") :] for text in texts)
    assert of_night.replace("name: nightly", "name: weekly").replace("select: covering", "select: full") == of_week
    assert nightly.selection is not None
    assert nightly.selection.covered == nightly.selection.possible
    assert nightly.selection.left_out > 2000
    assert nightly.rejected == ()


def test_the_numbers_on_the_page_are_right(root: Path, nightly: Expansion) -> None:
    page = (root / "docs" / "ci.md").read_text()
    assert nightly.selection is not None
    added = [sum(cell.role == "control" for cell in made.cells) for made in (nightly, weekly_of(root))]
    allowed = f"{nightly.selection.allowed:,}"
    assert (
        f"| {nightly.selection.cells} of {allowed}, so that every pair of values is run, and {added[0]} controls |"
        in page
    )
    assert f"| the {allowed}, and {added[1]} controls |" in page


def weekly_of(root: Path) -> Expansion:
    return expand(read_matrix(root / "matrices" / "weekly.yaml"))


def test_the_nightly_matrix_is_short_and_covers_what_single_nodes_cannot(nightly: Expansion) -> None:
    assert estimate(nightly, cores=2).seconds < 300
    paths = {(cell.config.stack, cell.config.data_path) for cell in nightly.cells if cell.role == "cell"}
    big = [cell.config for cell in nightly.cells if cell.config.layout.world_size == 16]
    both = {(c.stack, c.data_path) for c in big if c.layout.tp == 2 and c.layout.pp == 4 and c.layout.cp == 2}
    without_cp = ("verl091", "verl")  # a known bug of this release: matrices/rl.yaml
    assert both >= {path for path in paths - {without_cp} if DATA_PATHS[path[1]].packs}
    assert {cell.config.dtype for cell in nightly.cells} == {"fp32", "bf16"}


def test_every_night_has_cells_of_every_row_of_models(nightly: Expansion) -> None:
    models = [cell.config.model for cell in nightly.cells if cell.role == "cell"]
    assert {letter for model in models for letter in model.pattern} == set("*-EGM")
    assert sum(model.moe is not None for model in models) >= 4
    assert any(model.window for model in models) and any(model.softmax_scale for model in models)
    assert any(model.peft for model in models) and any(model.vision for model in models)


def test_the_newest_code_can_be_added(root: Path, tmp_path: Path) -> None:
    for name in ("nightly", "weekly"):
        text = (root / "matrices" / f"{name}.yaml").read_text()
        (tmp_path / "newest.yaml").write_text(text.replace("#: ", ""))
        matrix = read_matrix(tmp_path / "newest.yaml")
        added = matrix.stacks.keys() - YAML(typ="safe", pure=True).load(text)["stacks"].keys()
        assert added == {"megatron_main", "megatron_dev", "megatron_rl", "skyrl_main"}
        rows = [row.values for row in matrix.axes.dimensions[0]]
        assert {row["packing"] for row in rows if row["stack"] in added} == {"reference", "sft", "scheduler", "skyrl"}
        if name == "nightly":
            assert {cell.config.stack for cell in expand(matrix).cells} >= added


def test_the_triage_matrix_is_small(root: Path) -> None:
    made = expand(read_matrix(root / "matrices" / "triage.yaml"))
    names = [cell_name(cell.config) for cell in made.cells if cell.role == "cell"]
    assert names == [
        "tp2-pp4-cp1-sft",
        "tp1-pp1-cp2-sft",
        "tp2-pp1-cp1-sft-mbs2",
        "tp1-pp2-cp2-reference-moe4x2-aux_loss",
    ]
    assert estimate(made, cores=2).ranks < 20
    assert f"| {len(names)}, and {len(made.cells) - len(names)} controls |" in (root / "docs" / "ci.md").read_text()
