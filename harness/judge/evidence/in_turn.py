"""Makes the evidence of cells from the files that were found, each linked to its control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.run.records import CellResult, OracleRecord, RankRecord
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.core.tolerances import tolerances_for
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.failures.classification import JobEnding, LogTail
from harness.judge.stats.baseline import Baseline
from harness.judge.stats.noise import noise_floors


@dataclass(frozen=True, kw_only=True)
class CellFound:
    """Contents of the files of one attempt of a cell; the fields are those of CellEvidence."""

    records: dict[int, RankRecord] = field(default_factory=dict)
    result: CellResult | None = None
    oracle: OracleRecord | None = None
    retried: bool = False
    earlier: Sequence[CellFound] = ()  # of the newest attempt
    resumed: CellFound | None = None
    logs: Mapping[int, LogTail] = field(default_factory=dict)
    job: JobEnding = field(default_factory=JobEnding)
    before: Baseline | None = None
    attempt: int = 1
    folder: str = ""  # of the attempt, in the run directory
    config: CellConfig | None = None
    damaged: Sequence[str] = ()
    stopped: str = ""  # why the run was stopped before the cell had ended


def evidence_in_turn(plan: RunPlan, find: Callable[[str], CellFound]) -> Iterator[CellEvidence]:
    """Yield evidence of every planned cell, linked to its control; controls come first. `find` is called cell by cell.

    Only controls are kept, each until its last cell: a run of a thousand cells of 64 ranks does not fit into memory.
    """
    known = {cell.id: cell for cell in plan.expansion.cells}
    needed = {cell.control for cell in known.values()}
    controls: dict[str | None, CellEvidence] = {}
    left = Counter(cell.control for cell in known.values())
    nodes = {cell: allocation.nodes for allocation in plan.allocations for cell in allocation.cells}
    for cell in plan.expansion.controls_first:
        evidence = _evidence(plan, cell, find, nodes, controls.get(cell.control))
        if cell.base in known:
            evidence.base = _evidence(plan, known[cell.base], find, nodes)
        if cell.id in needed:
            controls[cell.id] = evidence
        yield evidence
        left[cell.control] -= 1
        if not left[cell.control]:
            controls.pop(cell.control, None)


def _evidence(
    plan: RunPlan,
    cell: PlannedCell,
    find: Callable[[str], CellFound],
    nodes: Mapping[str, int],
    control: CellEvidence | None = None,
) -> CellEvidence:
    files = find(cell.id)
    own = noise_floors(files.records)
    oracle = files.oracle.record if files.oracle is not None else None
    by_oracle = oracle is not None
    floors = noise_floors({0: oracle}) if oracle is not None else {}
    # Bounds against the oracle follow from its own second training; those within the cell, or against the control,
    # from the noise legs that the control ran, and only where none ran from the oracle's.
    noise = own or floors
    within = tolerances_for(cell.config.dtype, plan.tolerances, (control.noise if control else noise) or floors)
    newest = CellEvidence(
        cell=cell,
        control=control,
        tolerances=tolerances_for(cell.config.dtype, plan.tolerances, floors, by_oracle=True) if by_oracle else within,
        later=tolerances_for(cell.config.dtype, plan.tolerances, by_oracle=by_oracle),
        within=within if by_oracle else None,
        noise={} if control else noise,
        stack=plan.stacks.get(cell.config.stack),
        peak_tflops=plan.peak_tflops,
        history=plan.history,
        run_id=plan.run_id,
        nodes=nodes.get(cell.id, 1),
        **{**vars(files), "earlier": (), "resumed": None},
    )
    newest.earlier = [_with(newest, before) for before in files.earlier]
    return _with_resumed(newest, files.resumed)


def _with(evidence: CellEvidence, files: CellFound, **more: Any) -> CellEvidence:
    """Return the evidence with the files of another attempt, or of another part of an attempt."""
    fields = {**vars(files), "earlier": (), "resumed": None}
    return _with_resumed(replace(evidence, **{**fields, **more}), files.resumed)


def _with_resumed(evidence: CellEvidence, files: CellFound | None) -> CellEvidence:
    if files is not None and evidence.cell.config.resume:
        cell = replace(evidence.cell, config=evidence.cell.config.resumed, base=None, xfail=None)
        evidence.resumed = _with(evidence, files, cell=cell, saved=evidence, base=None, retried=False)
    return evidence
