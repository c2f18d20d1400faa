"""Judges a run directory. Trains nothing and may be repeated.

Cells are read and judged one by one, those of a large run in several processes. While a run continues, cells that have
ended are judged too: failures are shown as they come, and --maxfail counts them. Those verdicts are shown only; the
report judges every cell again.

The baselines of a run are read from the history once, then kept in its directory, so that judging is repeatable.
baseline.json has a seal like that of plan.json: without it, removing an earlier run would go unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

from harness.campaign import plugins
from harness.core.errors import HarnessError
from harness.core.outcomes import Outcome
from harness.core.run.events import CellStarted, Launched, RunStopped, read_events
from harness.core.run.provenance import Provenance
from harness.core.run.records import CellResult
from harness.core.run.report import Report, ReportCell
from harness.core.run.run_dir import LinkError, RunDir, text_of, write_json
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.core.secrets import without_secrets
from harness.core.serialization import from_jsonable, loads, to_jsonable
from harness.core.stack import Version
from harness.core.upstream import heads
from harness.infra import screen
from harness.infra.process import brief, keep_traceback, no_collection
from harness.infra.screen import environment_secrets
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.in_turn import CellFound, evidence_in_turn
from harness.judge.failures.classification import JobEnding
from harness.judge.stats.baseline import Baseline, Sample
from harness.judge.stats.noise import noise_floors
from harness.reporting.build import Judged, Seen, judge_cells, report_of
from harness.runs.evidence_files import read_cell, read_result, run_problems
from harness.runs.logs import read_job_endings

LARGE_RUN = 4000  # rank records; below that another process costs more than it saves
_MAX_PROCESSES = 8  # each holds the records of one cell and its controls
MAX_RANKS = 64  # of a cell and what it is compared with; reading more would take the processor from running cells
_SHOWN_AS_FAILED = (Outcome.FAIL, Outcome.XPASS, Outcome.ERROR)
_DAMAGED = (OSError, TypeError, ValueError, KeyError, AttributeError, RecursionError)


def judge(run: RunDir, plan: RunPlan, each: Seen | None = None) -> Report:
    """Judge the files of a run directory; trains nothing and may be repeated. `each`: called with every judged cell."""
    timing = _launch_timing(run)
    judged, seen = judge_all(run, plan, today=datetime.now(timezone.utc).date().isoformat(), each=each)
    wall = {"wall_s": timing["launch_s"]} if "launch_s" in timing else {}  # judging again must not change it
    problems = [*run_problems(run, plan), *(problem for problem in (baseline_problem(run, plan),) if problem)]
    report = report_of(plan, judged, timing={**timing, **wall}, provenance=seen.provenance(plan), problems=problems)
    return without_secrets(report, environment_secrets())


def ended_as_error(run: RunDir, plan: RunPlan) -> set[str]:
    """Return the cells that ended as ERROR by themselves: not those that only lack their control."""
    cells = judge(run, plan).cells
    undecided = {cell.id for cell in cells if cell.outcome in (Outcome.ERROR, Outcome.NOT_RUN)}
    return {
        cell.id
        for cell in cells
        # Asked of the result too: a supervisor that is killed leaves records without a failure.
        if cell.outcome is Outcome.ERROR and (cell.control not in undecided or not _completed(run, cell.id))
    }


def _completed(run: RunDir, cell: str) -> bool:
    result = read_result(run, cell)
    return result is not None and result.status == "completed"


def _launch_timing(run: RunDir) -> dict[str, float]:
    """Return the timing that the newest launch recorded; empty when there is none that can be read."""
    timings = [event.timing for event in read_events(run.events) if isinstance(event, Launched)]
    return timings[-1] if timings else {}


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is read once of a run, beside the files of its cells."""

    jobs: Mapping[str, JobEnding] = field(default_factory=dict)  # cell -> how its job ended
    before: Mapping[str, Baseline] = field(default_factory=dict)  # cell -> times of earlier runs
    stopped: Mapping[str, str] = field(default_factory=dict)  # cell -> why the run was stopped before it had ended


def judge_all(
    run: RunDir, plan: RunPlan, *, today: str, processes: int | None = None, each: Seen | None = None
) -> tuple[Judged, RanksSeen]:
    """Judge every cell of the plan; return the cells as the report shows them, and the software that the ranks ran.

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
        processes = min(len(os.sched_getaffinity(0)), _MAX_PROCESSES) if records >= LARGE_RUN else 1
    if processes == 1:
        return judge_here(run, plan, facts, today, each)
    whole, all_ranks = Judged(cells={}, noise={}), RanksSeen()
    first_part, *other_parts = _parts(plan, processes)
    with ProcessPoolExecutor(processes - 1, mp_context=get_context("spawn"), initializer=plugins.active) as pool:
        started = [pool.submit(judge_here, run, part, facts, today) for part in other_parts]
        judged_here, seen_here = judge_here(run, first_part, facts, today, each)
        for judged, seen_in_part in chain([(judged_here, seen_here)], (future.result() for future in started)):
            if each is not None and judged_here is not judged:  # for its own part, judge_here has called it
                for name in judged.cells.keys() - whole.cells.keys():
                    each(judged.cells[name])
            whole.cells.update(judged.cells)
            whole.noise.update(judged.noise)
            all_ranks.join(seen_in_part)
    return whole, all_ranks


def _parts(plan: RunPlan, count: int) -> list[RunPlan]:
    """Return the plan in `count` parts, each with all controls of its cells.

    Several parts may judge the same control.
    """
    by_id = {cell.id: cell for cell in plan.expansion.cells}
    size = -(-len(by_id) // count)
    cells = plan.expansion.controls_first  # so that few controls are in several parts
    chunks = [cells[start : start + size] for start in range(0, len(cells), size)]
    return [
        replace(plan, expansion=replace(plan.expansion, cells=tuple(with_compared(chunk, by_id)))) for chunk in chunks
    ]


def with_compared(cells: Sequence[PlannedCell], by_id: Mapping[str, PlannedCell]) -> list[PlannedCell]:
    """Return the cells and the cells that they are compared with: controls, and partners of interleaved timing."""
    chosen: dict[str, PlannedCell] = {}
    pending = list(reversed(cells))
    while pending:
        cell = pending.pop()
        if cell.id not in chosen:
            chosen[cell.id] = cell
            pending += [by_id[name] for name in (cell.control, cell.base) if name and name in by_id]
    return list(chosen.values())


def judge_here(
    run: RunDir, plan: RunPlan, facts: RunFacts, today: str, each: Seen | None = None
) -> tuple[Judged, RanksSeen]:
    """Judge every cell of the plan in this process."""
    ranks_seen = RanksSeen()

    def crashed(cell: str, error: Exception) -> str:
        """Return the reason of the ERROR; the traceback goes to a file beside the cell's attempts."""
        file = keep_traceback(error, run.cell(cell))
        why = f"the harness could not judge this cell: {brief(error)}"
        return f"{why}; unless its files were changed, please report it with {file}"

    def find(cell: str) -> CellFound:
        try:
            cell_found = read_cell(run, cell, facts.jobs)
            cell_found = replace(cell_found, before=facts.before.get(cell), stopped=facts.stopped.get(cell, ""))
            noise_floors(cell_found.records)  # computed here, where bad values make only this cell an error
        except LinkError:
            raise
        except Exception as error:
            return CellFound(result=CellResult(cell=cell, attempt=1, status="error", reason=crashed(cell, error)))
        return cell_found

    evidence = map(ranks_seen.add, evidence_in_turn(plan, find))
    with no_collection():
        return judge_cells(plan, evidence, today=today, crashed=crashed, seen=each), ranks_seen


def stopped_cells(run: RunDir) -> dict[str, str]:
    """Return why the run was stopped, by cell, for cells that had not ended by then and were not started again.

    It only says why there is no evidence: either way the cell is undecided.
    """
    reasons: dict[str, str] = {}
    for event in read_events(run.events):
        if isinstance(event, RunStopped):
            reasons |= dict.fromkeys(event.cells, event.why)
        elif isinstance(event, CellStarted):
            reasons.pop(event.cell, None)
    return reasons


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
        """Add the facts that the ranks of a cell recorded; return the cell."""
        for record in evidence.records.values():
            for proof in record.imports:
                if proof.module in heads():
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
        paths, heads = self.imports.setdefault(head.text, []), self.by_stack.setdefault(stack, [])
        paths += [] if path in paths else [path]
        heads += [] if head in heads else [head]

    def join(self, other: RanksSeen) -> None:
        """Add what other ranks reported."""
        for stack, imported in other.by_stack.items():
            own_heads = self.by_stack.setdefault(stack, [])
            own_heads += [head for head in imported if head not in own_heads]
        for name, paths in other.imports.items():
            own_paths = self.imports.setdefault(name, [])
            own_paths += [path for path in paths if path not in own_paths]
        self.hosts |= other.hosts
        self.devices |= other.devices
        self.processors |= other.processors
        self.attention |= other.attention
        self.placed |= other.placed
        self.cpu_stubs |= other.cpu_stubs
        self.gloo_stubs |= other.gloo_stubs

    def provenance(self, plan: RunPlan) -> Provenance:
        """Return the report's provenance: what the plan knew, the stacks, and what their ranks ran."""
        return Provenance(
            **vars(plan.provenance),
            stacks={name: stack.facts() for name, stack in plan.stacks.items()},
            imports=self.imports,
            imports_of_stacks=self.by_stack,
            hosts=sorted(self.hosts),
            devices=sorted(self.devices),
            processors=sorted(self.processors),
            attention=sorted(self.attention),
            placed=sorted(self.placed),
            cpu_stubs=sorted(self.cpu_stubs),
            gloo_stubs=sorted(self.gloo_stubs),
        )


class EnoughFailures(Exception):  # noqa: N818 - not an error: --maxfail asked for it
    """As many cells have failed as --maxfail names."""


class LiveJudging:
    """Judges each cell once it, its control and its partner in interleaved timing have ended."""

    def __init__(
        self, run: RunDir, plan: RunPlan, failed: Callable[[ReportCell], None], most_failures: int | None = None
    ) -> None:
        """`plan`: the whole one, also in a resumed run. `failed`: called with each cell that did not pass."""
        self._run, self._plan, self._failed, self._most = run, plan, failed, most_failures
        self._known = {cell.id: cell for cell in plan.expansion.cells}
        self._needs = {cell.id: with_compared([cell], self._known) for cell in plan.expansion.cells}
        self._ended = {cell for cell in self._known if read_result(run, cell) is not None}
        self._open = set(self._known) - self._ended
        self._for: dict[str, list[str]] = {}  # cell -> cells that are compared with it, and itself
        for name in sorted(self._open):
            for compared in self._needs[name]:
                self._for.setdefault(compared.id, []).append(name)
        self._facts = RunFacts(before=read_baselines(run))
        self._failures = 0

    def ended(self, cell: str) -> None:
        """Judge what can be judged now that a cell has ended. EnoughFailures when --maxfail is reached."""
        self._ended.add(cell)
        waiting = [name for name in self._for.get(cell, ()) if name in self._open]
        for name in [name for name in waiting if all(compared.id in self._ended for compared in self._needs[name])]:
            self._open.discard(name)
            self._judge(self._known[name])

    def _judge(self, cell: PlannedCell) -> None:
        compared = self._needs[cell.id]
        ranks = sum(member.config.layout.world_size for member in compared)
        if self._most is None and (ranks > MAX_RANKS or cell.config.timing.turns):  # a clock must not be disturbed
            return
        part = replace(self._plan, expansion=replace(self._plan.expansion, cells=tuple(compared)))
        judged, _ = judge_here(self._run, part, self._facts, datetime.now(timezone.utc).date().isoformat())
        judged_cell = judged.cells[cell.id]
        if isinstance(judged_cell, ReportCell) and judged_cell.outcome in _SHOWN_AS_FAILED:
            self._failed(judged_cell)
            self._failures += 1
            if self._most is not None and self._failures >= self._most:
                raise EnoughFailures


def keep_baselines(run: RunDir, plan: RunPlan, file: Path) -> None:
    """Write baseline.json, unless it exists or the matrix does not ask for it.

    A history that cannot be read is reported on stderr.
    """
    path = run.report("baseline.json")
    if plan.history is None or path.exists():
        return
    cells = {cell.id: Baseline(runs=plan.history.runs) for cell in plan.expansion.cells}
    try:
        _add_samples(cells, plan, file)
    except HarnessError as error:
        screen.err(f"harness: times are not compared with earlier runs: {error}")
    write_baselines(run, cells)


def write_baselines(run: RunDir, cells: dict[str, Baseline]) -> None:
    """Write baseline.json with its seal, by which a later change is seen."""
    write_json(run.report("baseline.json"), {"cells": cells, "seal": _baseline_seal(cells)}, indent=1)


def _baseline_seal(cells: dict[str, Baseline]) -> str:
    return hashlib.sha256(json.dumps(to_jsonable(cells), sort_keys=True).encode()).hexdigest()


def _add_samples(cells: dict[str, Baseline], plan: RunPlan, file: Path) -> None:
    from harness.history.database import opened
    from harness.history.queries import baseline

    if plan.history is None or not file.exists():
        return
    with opened(file, write=False) as history:
        for row in history.rows(baseline(plan.matrix_name, list(cells), plan.run_id, plan.history)):
            names = ("run_id", "started", "seconds", "version")
            sample = Sample(**{name: row[name] for name in names})
            cells[row["cell_id"]].samples.setdefault(row["hardware"], []).append(sample)


def read_baselines(run: RunDir) -> dict[str, Baseline]:
    """Return the baseline of each cell id.

    Empty when the file is missing or damaged, which baseline_problem reports.
    """
    try:
        return _read_kept_baselines(run)
    except _DAMAGED:
        return {}


def baseline_problem(run: RunDir, plan: RunPlan) -> str:
    """Return why the run's baseline cannot be read, so that no cell is compared with earlier times; else empty."""
    path = run.report("baseline.json")
    if plan.history is not None and not path.exists():
        return f"{path} is missing, so times cannot be compared with earlier runs"
    try:
        _read_kept_baselines(run)
    except _DAMAGED as error:
        hint = "remove it to read the times of earlier runs from the history again"
        return f"{path} cannot be read: {error}; {hint}"
    return ""


def _read_kept_baselines(run: RunDir) -> dict[str, Baseline]:
    path = run.report("baseline.json")
    if not path.exists():
        return {}
    values = loads(text_of(path))
    cells = {cell: from_jsonable(Baseline, value, whole=True) for cell, value in values["cells"].items()}
    if values["seal"] != _baseline_seal(cells):
        raise ValueError("it was changed after it was written")
    return cells
