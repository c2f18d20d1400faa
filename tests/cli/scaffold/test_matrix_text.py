"""The first matrix: a whole file that loads, on the software and devices of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cli.scaffold import Machine, look_at_machine, matrix_text
from harness.core.run.run_plan import Expansion
from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand
from harness.matrix.load import Matrix
from harness.matrix.stacks.recipes import WorkingTree
from harness.upstreams.table import PROJECTS

GOLDEN = Path(__file__).parent / "golden"


def written(machine: Machine, folder: Path, cluster: bool = False) -> tuple[Matrix, Expansion]:
    file = folder / "matrix.yaml"
    file.write_text(matrix_text(machine, "first", Path("matrix.yaml"), cluster))
    matrix = read_matrix(file)
    return matrix, expand(matrix)


def layouts(made: Expansion) -> list[str]:
    sizes = [cell.config.layout for cell in made.cells if cell.role == "cell"]
    return list(dict.fromkeys(f"tp{one.tp}-pp{one.pp}-cp{one.cp}" for one in sizes))


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("launcher_alone", Machine(cores=2, gpus=0)),
        ("checkout_and_one_gpu", Machine(cores=64, gpus=1, tree=WorkingTree("/src/x", "megatron-bridge"))),
        ("checkout_with_options", Machine(cores=2, gpus=0, tree=WorkingTree("/src/verl", "verl"))),
        ("installed_and_gpus", Machine(cores=96, gpus=8, megatron="0.19.2")),
    ],
)
def test_the_whole_file(name: str, machine: Machine) -> None:
    assert matrix_text(machine, "first", Path("matrix.yaml"), False) == (GOLDEN / f"{name}.yaml").read_text()


def test_the_launcher_alone_gets_a_recipe(tmp_path: Path) -> None:
    matrix, made = written(Machine(cores=2, gpus=0), tmp_path)
    assert list(matrix.stacks) == ["core-0.19.2"]
    assert made.rejected == ()
    assert layouts(made) == ["tp1-pp1-cp1", "tp1-pp1-cp2", "tp2-pp2-cp1"]


def test_an_installed_megatron_is_tested_itself(tmp_path: Path) -> None:
    matrix, made = written(Machine(cores=2, gpus=0, megatron="0.19.2"), tmp_path)
    assert matrix.stacks == {}
    assert {cell.config.stack for cell in made.cells} == {"default"}


@pytest.mark.parametrize("project", PROJECTS)
def test_in_a_checkout_it_is_the_code_under_test(project: str, tmp_path: Path) -> None:
    tree = WorkingTree("/src/x", project)
    matrix, made = written(Machine(cores=8, gpus=0, megatron="0.19.2", tree=tree), tmp_path)
    assert list(matrix.stacks) == ["working-tree"]
    paths = {cell.config.data_path for cell in made.cells if cell.role == "cell"}
    assert len(paths) == 2 and "reference" in paths
    assert made.rejected == ()


@pytest.mark.parametrize(
    ("gpus", "cluster", "device"), [(0, False, "auto"), (1, False, "cpu"), (8, False, "auto"), (1, True, "auto")]
)
def test_cells_train_on_gpus_where_every_rank_has_one(gpus: int, cluster: bool, device: str, tmp_path: Path) -> None:
    _, made = written(Machine(cores=2, gpus=gpus, megatron="0.19.2"), tmp_path, cluster)
    assert {cell.config.device for cell in made.cells} == {device}
    assert ("tp2-pp4-cp1" in layouts(made)) == (gpus == 8)


def test_the_machine_is_asked_without_importing_torch() -> None:
    found = look_at_machine()
    assert found.cores >= 1
    assert found.megatron == "0.19.2"
    assert found.tree is None
