"""The fault catalogue as text: for `harness selftest --list` and docs/failures.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.cell.identity import cell_name
from harness.core.outcomes import Outcome
from harness.plan.faults import CLASSES, FaultSpec

_HEAD = """## Fault catalogue

`harness selftest` injects each of these faults into a real training cell and requires that it is caught: the first
finding must be of the first check named, in its lane, at its place, and the other checks named must have a finding
too. Every cell runs all canaries. The same cell without the fault, its clean twin, must pass. With a fault of the
numerics lane, the metadata lane must pass; with a fault of the throughput lane, both other lanes. A fault that costs
time only on a GPU is a warning, and its cell passes. If only a comparison with another stack shows a fault, the clean
twin takes the place of that stack, and the two run interleaved. Faults of class trainer change a line of upstream's
own training code, those of class rollout a line of a framework's packing or loss, those of class tests what upstream's
unit tests find; `harness selftest --trainers` injects them instead, those in models with adapters or vision, and those
in the packing scheduler, on stacks of the shipped matrices `trainer_bridge`, `rl`, `rl_megatron` and `upstream_tests`.
It leaves out, and names, faults whose stack needs a clone that is not there. Labels such as A3 or 2.1 number a
collection of packing bugs; most come with the upstream commit, pull request or issue.

`python scripts/key_tables.py` writes this section from the catalogue in `harness/plan/faults`. The injections are in
`harness/node/faults`, under the same names.
"""


def catalogue_text(faults: Sequence[FaultSpec]) -> str:
    """One block per fault, in the order of the classes."""
    blocks = [f"{len(faults)} faults"]
    for spec in _ordered(faults):
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
    """The last section of docs/failures.md."""
    parts = [_HEAD]
    for fault_class in CLASSES:
        rows = [spec for spec in faults if spec.fault_class == fault_class]
        if rows:
            parts.append(f"\n### {fault_class.capitalize()}\n\n{_table(rows)}")
    return "".join(parts)


def with_catalogue(page: str, faults: Sequence[FaultSpec]) -> str:
    """The page with its last section, the catalogue, generated anew."""
    before, _, _ = page.partition(_HEAD.splitlines()[0] + "\n")
    return before + catalogue_markdown(faults)


def demand_text(spec: FaultSpec) -> str:
    """E.g. 'metadata: params_present at stage 1, ranks [1]'."""
    outcome = "" if spec.outcome is Outcome.FAIL else f"outcome {spec.outcome.value}; "
    also = "".join(f"; {check} at {where_text(where)}" for check, where in spec.also.items())
    return f"{outcome}{spec.lane.value}: {', '.join(spec.checks)} at {where_text(spec.where)}{also}"


def where_text(where: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in where.items())


def _ordered(faults: Sequence[FaultSpec]) -> list[FaultSpec]:
    return sorted(faults, key=lambda spec: CLASSES.index(spec.fault_class))


def _table(rows: Sequence[FaultSpec]) -> str:
    lines = [
        "| fault | what is broken | modelled on | cell, and why it is minimal | caught by |",
        "|---|---|---|---|---|",
    ]
    for spec in rows:
        cell = f"`{cell_name(spec.twin)}`: {spec.why}"
        cells = (f"`{spec.name}`", spec.summary, spec.modelled_on, cell, demand_text(spec))
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in cells)} |")
    return "\n".join(lines) + "\n"
