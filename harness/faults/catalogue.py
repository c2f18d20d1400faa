"""The catalogue of faults that `harness selftest` injects, its text, and the cells of `harness run --fault`.

Pure: the injections are in modules node_*.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id, cell_name
from harness.core.errors import InputError, Problem
from harness.core.outcomes import Outcome
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.core.stack import DEFAULT
from harness.faults.content import CANARY, CONTENT, LAYOUT
from harness.faults.endings import CRASH, HANG, INFRASTRUCTURE, THROUGHPUT
from harness.faults.metadata import METADATA
from harness.faults.numerics import LEAK, NORMALISATION, OUTPUT
from harness.faults.spec import CLASSES, FaultSpec
from harness.features.adapters import faults as adapters
from harness.features.attention import faults as attention
from harness.features.experts import faults as experts
from harness.features.hybrid import faults as hybrid
from harness.features.optimizer import faults as optimizer
from harness.features.prediction import faults as prediction
from harness.features.vision import faults as vision
from harness.upstreams.megatron_bridge import faults as megatron_bridge
from harness.upstreams.megatron_lm import faults as megatron_lm
from harness.upstreams.nemo_rl import faults as nemo_rl
from harness.upstreams.verl import faults as verl

FAULTS: tuple[FaultSpec, ...] = (
    METADATA
    + LAYOUT
    + OUTPUT
    + CONTENT
    + LEAK
    + NORMALISATION
    + optimizer.SCHEDULE
    + experts.ROUTERS
    + prediction.PREDICTION
    + attention.LATENT
    + hybrid.HYBRID
    + experts.EXPERTS
    + adapters.ADAPTERS
    + attention.ATTENTION
    + CANARY
    + HANG
    + CRASH
    + INFRASTRUCTURE
    + THROUGHPUT
    + megatron_bridge.TRAINER
    + vision.VISION
    + verl.VERL
    + nemo_rl.NEMO_RL
    + megatron_lm.MEGATRON_RL
    + megatron_lm.SCHEDULER
)


def faults_named(names: Iterable[str], option: str) -> list[FaultSpec]:
    """Return the faults, in the order of the catalogue. InputError that has every unknown name."""
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
    """Return the cells, broken where the fault can be injected; those with which others are compared stay sound.

    InputError for an unknown fault, and when no cell can have it.
    """
    (spec,) = faults_named([name], "--fault")
    sound = {cell.control for cell in expansion.cells} | {cell.base for cell in expansion.cells}
    cells = tuple(
        _broken_cell(cell, name) if cell.control and cell.id not in sound and _can_have(spec, cell.config) else cell
        for cell in expansion.cells
    )
    if cells == expansion.cells:
        raise InputError(Problem(key="--fault", message=f"no chosen cell can have {name}", allowed=_needed_for(spec)))
    return replace(expansion, cells=cells)


def _broken_cell(cell: PlannedCell, name: str) -> PlannedCell:
    config = replace(cell.config, fault=name)
    return replace(cell, id=cell_id(config), config=config)


def _can_have(spec: FaultSpec, config: CellConfig) -> bool:
    """Return whether the code that the fault changes runs in the cell; its layout may still not show it."""
    return config.trainer == spec.trainer and (_of_harness(spec) or config.data_path == spec.data_path)


def _of_harness(spec: FaultSpec) -> bool:
    """Return whether it breaks what every data path has, not upstream's code for one of them."""
    return spec.stack == DEFAULT


def _needed_for(spec: FaultSpec) -> str:
    needed = [f"trainer {spec.trainer}", *([] if _of_harness(spec) else [f"packing {spec.data_path}"])]
    return f"cells with {' and '.join(needed)} that are compared with a control"


_PAGE_HEAD = """# Fault catalogue

`harness selftest` injects each of these faults into a real training cell and requires that it is caught: the first
finding must be of the first check named, in its lane, at its place, and the other checks named must have a finding
too. Every cell runs all canaries. The same cell without the fault, its clean twin, must pass. With a fault of the
numerics lane, the metadata lane must pass; with a fault of the throughput lane, both other lanes. A fault that costs
time only on a GPU is a warning, and its cell passes. If only a comparison with another stack shows a fault, the clean
twin takes the place of that stack, and the two run interleaved. Faults of class trainer change a line of upstream's
own training code, those of class rollout a line of a framework's packing or loss; `harness selftest --trainers`
injects them instead, those in models with adapters or vision, and those in the packing scheduler, on stacks of the
shipped matrices `trainer_bridge`, `rl` and `rl_megatron`.
It leaves out, and names, faults whose stack needs a clone that is not there. Labels such as A3 or 2.1 number a
collection of packing bugs; most come with the upstream commit, pull request or issue.

`python scripts/key_tables.py` writes this page from the specifications in `harness`: modules `faults.py`.
The injections are in modules `node_faults.py` beside them, under the same names.
"""


def catalogue_text(faults: Sequence[FaultSpec]) -> str:
    """One block per fault, in the order of the classes."""
    blocks = [f"{len(faults)} faults"]
    for spec in _by_class(faults):
        lines = (
            spec.name,
            f"  class:       {spec.fault_class}",
            f"  fault:       {spec.summary}",
            f"  modelled on: {spec.modelled_on}",
            f"  cell:        {cell_name(spec.twin)} ({spec.why})",
            f"  caught by:   {demand_text(spec)}",
        )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def catalogue_markdown(faults: Sequence[FaultSpec]) -> str:
    """Return the page docs/generated/faults.md."""
    parts = [_PAGE_HEAD]
    for fault_class in CLASSES:
        rows = [spec for spec in faults if spec.fault_class == fault_class]
        if rows:
            parts.append(f"\n## {fault_class.capitalize()}\n\n{_class_table(rows)}")
    return "".join(parts)


def demand_text(spec: FaultSpec) -> str:
    """Return e.g. 'metadata: params_present at stage 1, ranks [1]'."""
    outcome = "" if spec.outcome is Outcome.FAIL else f"outcome {spec.outcome.value}; "
    also = "".join(f"; {check} at {where_text(where)}" for check, where in spec.also.items())
    return f"{outcome}{spec.lane.value}: {', '.join(spec.checks)} at {where_text(spec.where)}{also}"


def where_text(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in where.items())


def _by_class(faults: Sequence[FaultSpec]) -> list[FaultSpec]:
    return sorted(faults, key=lambda spec: CLASSES.index(spec.fault_class))


def _class_table(rows: Sequence[FaultSpec]) -> str:
    lines = [
        "| fault | what is broken | modelled on | cell, and why it is minimal | caught by |",
        "|---|---|---|---|---|",
    ]
    for spec in rows:
        cell = f"`{cell_name(spec.twin)}`: {spec.why}"
        cells = (f"`{spec.name}`", spec.summary, spec.modelled_on, cell, demand_text(spec))
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in cells)} |")
    return "\n".join(lines) + "\n"
