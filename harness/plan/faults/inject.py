"""`harness run --fault`: the cells of a matrix with one of the catalogue's faults. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.errors import InputError, Problem
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.core.stack import DEFAULT
from harness.plan.faults import FAULTS, FaultSpec


def faults_named(names: Iterable[str], option: str) -> list[FaultSpec]:
    """The faults, in the order of the catalogue. InputError that has every unknown name."""
    wanted = list(names)
    known = {spec.name: spec for spec in FAULTS}
    problems = []
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "`harness selftest --list` names them"
            problems.append(Problem(message=f"{option} {name}: no such fault", hint=hint))
    if problems:
        raise InputError(problems)
    return [spec for spec in FAULTS if spec.name in wanted]


def with_fault(expansion: Expansion, name: str) -> Expansion:
    """The cells, broken where the fault can be injected; those with which others are compared stay sound.

    InputError for an unknown fault, and when no cell can have it.
    """
    (spec,) = faults_named([name], "--fault")
    sound = {cell.control for cell in expansion.cells} | {cell.base for cell in expansion.cells}
    cells = tuple(
        _broken(cell, name) if cell.control and cell.id not in sound and _fits(spec, cell.config) else cell
        for cell in expansion.cells
    )
    if cells == expansion.cells:
        raise InputError(Problem(key="--fault", message=f"no chosen cell can have {name}", allowed=_needs(spec)))
    return replace(expansion, cells=cells)


def _broken(cell: PlannedCell, name: str) -> PlannedCell:
    config = replace(cell.config, fault=name)
    return replace(cell, id=cell_id(config), config=config)


def _fits(spec: FaultSpec, config: CellConfig) -> bool:
    """Whether the code that the fault changes runs in the cell; its layout may still not show it."""
    return config.trainer == spec.trainer and (_of_harness(spec) or config.data_path == spec.data_path)


def _of_harness(spec: FaultSpec) -> bool:
    """Whether it breaks what every data path has, not upstream's code for one of them."""
    return spec.stack == DEFAULT and not spec.forbidden


def _needs(spec: FaultSpec) -> str:
    needed = [f"trainer {spec.trainer}", *([] if _of_harness(spec) else [f"packing {spec.data_path}"])]
    return f"cells with {' and '.join(needed)} that are compared with a control"
