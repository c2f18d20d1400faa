"""Reads and judges the cells of a run one by one, a large run in several processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from multiprocessing import get_context
from typing import Any

from harness.app import plugins
from harness.app.error_boundary import brief, keep_traceback
from harness.app.garbage import no_collection
from harness.app.pipeline.baselines import read_baselines
from harness.core.run.events import CellStarted, RunStopped, read_events
from harness.core.run.records import CellResult
from harness.core.run.run_dir import LinkError, RunDir
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.core.serialization import to_jsonable
from harness.core.stack import Version
from harness.core.upstream import HEADS
from harness.infra.runs.evidence_files import read_cell
from harness.infra.runs.logs import read_job_endings
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.in_turn import CellFound, evidence_in_turn
from harness.judge.failures.classification import JobEnding
from harness.judge.report.build import Judged, Seen, judge_cells
from harness.judge.stats.baseline import Baseline
from harness.judge.stats.noise import noise_floors

LARGE_RUN = 4000  # rank records; below that another process costs more than it saves
_MOST_PROCESSES = 8  # each holds the records of one cell and its controls


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is read once of a run, beside the files of its cells."""

    jobs: Mapping[str, JobEnding] = field(default_factory=dict)  # cell -> how its job ended
    before: Mapping[str, Baseline] = field(default_factory=dict)  # cell -> times of earlier runs
    stopped: Mapping[str, str] = field(default_factory=dict)  # cell -> why the run was stopped before it had ended


def judge_all(
    run: RunDir, plan: RunPlan, *, today: str, processes: int | None = None, each: Seen | None = None
) -> tuple[Judged, RanksSeen]:
    """Judge every cell of the plan; returns the cells as the report shows them, and the software that the ranks ran.

    `processes`: None chooses by the size of the run. `each`: called with every judged cell; those of another process
    come when all of them are judged.
    """
    facts = RunFacts(
        jobs=read_job_endings(run, (cell.id for cell in plan.expansion.cells)),
        before=read_baselines(run),
        stopped=stopped_cells(run),
    )
    if processes is None:
        records = sum(cell.config.layout.world_size for cell in plan.expansion.cells)
        processes = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES) if records >= LARGE_RUN else 1
    if processes == 1:
        return judge_here(run, plan, facts, today, each)
    whole, seen = Judged(cells={}, noise={}), RanksSeen()
    own, *others = _parts(plan, processes)
    with ProcessPoolExecutor(processes - 1, mp_context=get_context("spawn"), initializer=plugins.active) as pool:
        started = [pool.submit(judge_here, run, part, facts, today) for part in others]
        judged_here, seen_here = judge_here(run, own, facts, today, each)
        for judged, found in chain([(judged_here, seen_here)], (future.result() for future in started)):
            if each is not None and judged_here is not judged:
                for name in judged.cells.keys() - whole.cells.keys():
                    each(judged.cells[name])
            whole.cells.update(judged.cells)
            whole.noise.update(judged.noise)
            seen.join(found)
    return whole, seen


def _parts(plan: RunPlan, count: int) -> list[RunPlan]:
    """The plan in `count` parts, each with all controls of its cells; several parts may judge the same control."""
    known = {cell.id: cell for cell in plan.expansion.cells}
    size = -(-len(known) // count)
    cells = plan.expansion.controls_first  # so that few controls are in several parts
    chunks = [cells[start : start + size] for start in range(0, len(cells), size)]
    return [
        replace(plan, expansion=replace(plan.expansion, cells=tuple(with_compared(chunk, known)))) for chunk in chunks
    ]


def with_compared(cells: Sequence[PlannedCell], known: Mapping[str, PlannedCell]) -> list[PlannedCell]:
    """The cells and the cells that they are compared with: controls, and partners of interleaved timing."""
    found: dict[str, PlannedCell] = {}
    pending = list(reversed(cells))
    while pending:
        cell = pending.pop()
        if cell.id not in found:
            found[cell.id] = cell
            pending += [known[name] for name in (cell.control, cell.base) if name and name in known]
    return list(found.values())


def judge_here(
    run: RunDir, plan: RunPlan, facts: RunFacts, today: str, each: Seen | None = None
) -> tuple[Judged, RanksSeen]:
    """Judge every cell of the plan in this process."""
    seen = RanksSeen()

    def crashed(cell: str, error: Exception) -> str:
        """The reason of the ERROR; the traceback goes to a file beside the cell's attempts."""
        file = keep_traceback(error, run.cell(cell))
        why = f"the harness could not judge this cell: {brief(error)}"
        return f"{why}; unless its files were changed, please report it with {file}"

    def find(cell: str) -> CellFound:
        try:
            found = read_cell(run, cell, facts.jobs)
            found = replace(found, before=facts.before.get(cell), stopped=facts.stopped.get(cell, ""))
            noise_floors(found.records)  # computed here, where bad values make only this cell an error
        except LinkError:
            raise
        except Exception as error:
            return CellFound(result=CellResult(cell=cell, attempt=1, status="error", reason=crashed(cell, error)))
        return found

    evidence = map(seen.add, evidence_in_turn(plan, find))
    with no_collection():
        return judge_cells(plan, evidence, today=today, crashed=crashed, seen=each), seen


def stopped_cells(run: RunDir) -> dict[str, str]:
    """Cell -> why the run was stopped before the cell had ended, unless it was started again later.

    It only says why there is no evidence: either way the cell is undecided.
    """
    found: dict[str, str] = {}
    for event in read_events(run.events):
        if isinstance(event, RunStopped):
            found |= dict.fromkeys(event.cells, event.why)
        elif isinstance(event, CellStarted):
            found.pop(event.cell, None)
    return found


class RanksSeen:
    """The software that the ranks ran: import proofs, environment and stubs, each distinct value once."""

    def __init__(self) -> None:
        self.imports: dict[str, list[str]] = {}
        self.by_stack: dict[str, list[Version]] = {}  # stack -> modules that its ranks imported
        self.hosts: set[str] = set()
        self.devices: set[str] = set()
        self.processors: set[str] = set()
        self.attention: set[str] = set()
        self.placed: set[str] = set()
        self.cpu_stubs: set[str] = set()
        self.gloo_stubs: set[str] = set()

    def add(self, evidence: CellEvidence) -> CellEvidence:
        """Add the facts that the ranks of a cell recorded; returns the cell."""
        for record in evidence.records.values():
            for proof in record.imports:
                if proof.module in HEADS:
                    head = Version(name=proof.module, version=proof.version)
                    self._import(evidence.cell.config.stack, head, proof.path)
            self.hosts.update({record.environment["host"]} if "host" in record.environment else ())
            self.devices.add(record.environment.get("device", "unknown"))
            self.processors.update({record.environment["processor"]} if "processor" in record.environment else ())
            self.attention.add(record.environment.get("attention", "unknown"))
            self.placed.update({record.environment["placed"]} if "placed" in record.environment else ())
            self.cpu_stubs.update(record.cpu_stubs)
            self.gloo_stubs.update(record.gloo_stubs)
        return evidence

    def _import(self, stack: str, head: Version, path: str) -> None:
        paths, held = self.imports.setdefault(head.text, []), self.by_stack.setdefault(stack, [])
        paths += [] if path in paths else [path]
        held += [] if head in held else [head]

    def join(self, other: RanksSeen) -> None:
        """Add what other ranks reported."""
        for stack, heads in other.by_stack.items():
            held = self.by_stack.setdefault(stack, [])
            held += [head for head in heads if head not in held]
        for name, paths in other.imports.items():
            known = self.imports.setdefault(name, [])
            known += [path for path in paths if path not in known]
        self.hosts |= other.hosts
        self.devices |= other.devices
        self.processors |= other.processors
        self.attention |= other.attention
        self.placed |= other.placed
        self.cpu_stubs |= other.cpu_stubs
        self.gloo_stubs |= other.gloo_stubs

    def facts(self) -> dict[str, Any]:
        """For the report's provenance."""
        return {
            "imports": self.imports,
            "imports_of_stacks": to_jsonable(self.by_stack),
            "hosts": sorted(self.hosts),
            "devices": sorted(self.devices),
            "processors": sorted(self.processors),
            "attention": sorted(self.attention),
            "placed": sorted(self.placed),
            "cpu_stubs": sorted(self.cpu_stubs),
            "gloo_stubs": sorted(self.gloo_stubs),
        }
