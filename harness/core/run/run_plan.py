"""The plan of a run, and the work orders of its agents.

plan.json is written before anything starts, and is sufficient to judge the run again later. A work order names the
cells that an agent must run: a launcher writes it, or the agent of a job that Slurm restarted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Annotated, Any

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Lane, Rejection
from harness.core.run.provenance import PlanProvenance
from harness.core.run.records import CellRole
from harness.core.run.run_dir import RunDir, text_of, write_json
from harness.core.serialization import from_jsonable, loads, to_jsonable
from harness.core.setting import Limits, setting
from harness.core.stack import DEFAULT, ReadyStack
from harness.core.text import counted
from harness.core.tolerances import ToleranceOverrides

PLAN_VERSION = 2  # schema_version of plan.json; in 1, a control was called reference


def _iso_date(value: Any) -> str | None:
    """Return the date as ISO text. YAML reads an unquoted date as a date, a quoted one as text."""
    if value is None:
        return None
    try:
        found = date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if type(found) is not date:
        raise ValueError("must be a date like 2027-01-31")
    return found.isoformat()


@dataclass(frozen=True, kw_only=True)
class XFail:
    """A known failure."""

    # a cell name is the id without its hash
    pattern: str = setting(doc="Shell-style pattern over cell names, e.g. tp2-*-sft.", min_length=1)
    reason: str = setting(doc="Why it fails.", min_length=1)
    link: str = setting("", doc="Where it is tracked.")
    expires: str = setting(
        "",
        doc="Date after which the failure counts again.",
        optional=True,
        read=_iso_date,
        written={"anyOf": [{"format": "date", "type": "string"}, {"type": "null"}]},
        values="date",
    )
    lanes: tuple[Annotated[str, Limits(choices=tuple(lane.value for lane in Lane))], ...] = setting(
        (), doc="Lanes that fail; any other set of lanes is a FAIL."
    )
    checks: tuple[Annotated[str, Limits(min_length=1)], ...] = setting(
        (), doc="Checks that fail; if another one fails too, the cell is a FAIL. Empty: any."
    )
    message_contains: tuple[Annotated[str, Limits(min_length=1)], ...] = setting(
        (), doc="Texts that must each occur in a finding; otherwise the cell is a FAIL."
    )
    strict: bool = setting(False, doc="A cell that passes is a FAIL, not an XPASS.")


@dataclass(frozen=True, kw_only=True)
class MayReject:
    """Cells that a checkout may be too old for, or too new."""

    pattern: str = setting(doc="Shell-style pattern over cell names, e.g. *-core017.", min_length=1)
    reason: str = setting(doc="What the checkout lacks.", min_length=1)


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    id: str
    axes: dict[str, Any]  # axis name -> resolved value, in matrix order, for tables
    config: CellConfig
    group: str  # parity group: cells of one group must compute the same numbers
    control: str | None  # id of the group's control; None for the control itself
    base: str | None = None  # id of the same cell in the base stack, which this one is timed against, interleaved
    role: CellRole = "cell"
    xfail: XFail | None = None
    may_reject: str = ""  # why it may be REJECTED for what a checkout lacks; empty: then it is ERROR
    line: int | None = None  # of the matrix row it comes from, for annotations
    reproduce: str = ""  # command that runs it alone; empty: the matrix with --only


@dataclass(frozen=True, kw_only=True)
class RejectedCell:
    id: str
    axes: dict[str, Any]
    rejections: tuple[Rejection, ...]
    line: int | None = None


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The choice of `select: covering` among the cells that constraints and rules allow, without added controls."""

    strength: int  # t, the number of axes in a tuple
    cells: int  # number of selected cells
    allowed: int  # number of cells to select from
    covered: int  # t-tuples of values that a selected cell has
    possible: int  # t-tuples that an allowed cell has
    impossible: dict[str, int] = field(default_factory=dict)  # why -> t-tuples that no allowed cell has
    kept: dict[str, int] = field(default_factory=dict)  # why -> cells that are never left out

    @property
    def left_out(self) -> int:
        return self.allowed - self.cells

    @property
    def text(self) -> str:
        """E.g. "covering 2: 38 of 412 cells cover 310 of 310 pairs (24 not possible)"."""
        tuples = {1: "values", 2: "pairs", 3: "triples"}.get(self.strength, f"{self.strength}-tuples")
        missing = sum(self.impossible.values())
        note = f" ({missing} not possible)" if missing else ""
        cells = f"{self.cells} of {self.allowed} cells cover"
        return f"covering {self.strength}: {cells} {self.covered} of {self.possible} {tuples}{note}"


def circular(controls: Mapping[str, str | None]) -> str | None:
    """Return the first of `controls`, cell -> control, that is its own control, directly or through others."""
    sound: set[str | None] = {None}
    for cell in controls:
        chain: dict[str, None] = {}
        above: str | None = cell
        while above is not None and above not in sound and above in controls:
            if above in chain:
                return above
            chain[above] = None
            above = controls[above]
        sound.update(chain)
    return None


@dataclass(frozen=True, kw_only=True)
class Expansion:
    cells: tuple[PlannedCell, ...]
    rejected: tuple[RejectedCell, ...]
    excluded: dict[str, int] = field(default_factory=dict)  # constraint -> combinations it dropped
    selection: Selection | None = None  # None: every allowed cell runs

    @property
    def circular(self) -> str | None:
        """The id of a cell that is its own control, directly or through others; None in a sound plan."""
        return circular({cell.id: cell.control for cell in self.cells})

    @property
    def controls_first(self) -> list[PlannedCell]:
        """The cells, each after its control, and all of one control together. Only of a plan that is not `circular`."""
        known = {cell.id for cell in self.cells}
        compared: dict[str | None, list[PlannedCell]] = {}
        for cell in self.cells:
            compared.setdefault(cell.control if cell.control in known else None, []).append(cell)
        ordered: list[PlannedCell] = []
        pending = compared.get(None, [])[::-1]
        while pending:
            ordered.append(pending.pop())
            pending += reversed(compared.get(ordered[-1].id, []))
        return ordered


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One job that holds nodes and runs its cells in turn. Members of an array are named <array>-<index>."""

    name: str
    cells: tuple[str, ...]
    nodes: int = 1
    ranks_per_node: int = 1
    stack: str = DEFAULT
    array: str = ""  # the job array it belongs to, one per shape; empty on this machine
    index: int = 0  # in the array
    time_limit_min: int | None = None  # None: no limit
    interleaved: bool = (
        False  # its cells are interleaved with those of another allocation, which must run at the same time
    )


@dataclass(frozen=True, kw_only=True)
class BaselineRequest:
    """The earlier green runs whose times are compared with those of this run."""

    runs: int  # at most, the newest
    since: str = ""  # ISO date: only runs from this date on


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The training run that a matrix was written from, and what became of its settings."""

    source: str = setting("", doc="What the run was read from.")
    kept: list[str] = setting(default_factory=list, doc="Settings that cells have as the run has them.")
    shrunk: list[str] = setting(
        default_factory=list, doc="Sizes that are smaller in cells, e.g. `model.layers 32 -> 4`."
    )
    not_tested: dict[str, list[str]] = setting(
        default_factory=dict, doc="Settings that cells do not have, by the reason."
    )

    @property
    def counts_text(self) -> str:
        """E.g. "31 settings kept, 7 sizes shrunk, 24 settings not tested"."""
        left_out = sum(map(len, self.not_tested.values()))
        kept, shrunk = counted(len(self.kept), "setting"), counted(len(self.shrunk), "size")
        return f"{kept} kept, {shrunk} shrunk, {counted(left_out, 'setting')} not tested"


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    run_id: str
    matrix_name: str
    matrix_file: str
    command: list[str]
    expansion: Expansion
    allocations: tuple[Allocation, ...]
    tolerances: ToleranceOverrides = field(default_factory=ToleranceOverrides)
    history: BaselineRequest | None = None
    peak_tflops: dict[str, float] = field(default_factory=dict)  # of one GPU by dtype, where the user gives it
    cluster: str | None = None  # as --cluster named it; None: as the matrix says
    settings: list[str] = field(default_factory=list)  # KEY=VALUE of --set, which change the matrix file's values
    max_attempts: int = 3  # of one cell, if the cluster ends its attempts
    provenance: PlanProvenance = field(default_factory=PlanProvenance)
    stacks: dict[str, ReadyStack] = field(default_factory=dict)  # of its cells, without the default one
    origin: Origin | None = None  # the training run that the matrix was written from
    since: str | None = None  # the commit of --since
    earlier_stacks: list[str] = field(default_factory=list)  # at that commit, which the others are compared with
    seal: str = ""  # `seal_of` everything else in plan.json
    schema_version: int = PLAN_VERSION

    @property
    def faults(self) -> list[str]:
        """Names of the faults that were injected; a run with one decides nothing about the code under test."""
        return sorted({cell.config.fault for cell in self.expansion.cells if cell.config.fault})


def seal_of(plan: RunPlan) -> str:
    """Count of the cells and a digest of everything in the plan but its seal: "12 cells, 1f0c...".

    Without it, removing a cell from plan.json would go unnoticed, since only planned cells are judged.
    """
    return _seal(len(plan.expansion.cells), to_jsonable(replace(plan, seal="")))


def _seal(cells: int, values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True)
    return f"{cells} cells, {hashlib.sha256(text.encode()).hexdigest()}"


def sealed_text(plan: RunPlan) -> str:
    """Return the text of plan.json: the plan with its seal, converted once, since it may be tens of megabytes."""
    values: dict[str, Any] = to_jsonable(replace(plan, seal=""))
    values["seal"] = _seal(len(plan.expansion.cells), values)
    return json.dumps(values, allow_nan=False, ensure_ascii=False) + "\n"


@dataclass(frozen=True, kw_only=True)
class CellAttempt:
    cell: str
    attempt: int  # from 1


@dataclass(frozen=True, kw_only=True)
class WorkOrder:
    """The file submissions/<name>.json. Fields that are None are not written."""

    cells: tuple[CellAttempt, ...]  # in starting order
    parallel_ranks: int  # ranks that may run at once on a node
    nodes: int | None = None  # None: one
    ranks_per_node: int | None = None  # of each cell that spans nodes; None: not checked
    silence_s: float | None = None  # a node counts as lost so long after a heartbeat; None: rendezvous.SILENCE_S

    @property
    def attempts(self) -> dict[str, int]:
        """Cell -> number of its attempt."""
        return {item.cell: item.attempt for item in self.cells}


def cell_attempts(attempts: Iterable[tuple[str, int]]) -> tuple[CellAttempt, ...]:
    return tuple(CellAttempt(cell=cell, attempt=attempt) for cell, attempt in attempts)


def write_work_order(run: RunDir, name: str, order: WorkOrder) -> None:
    """Write submissions/<name>.json; `name`: the allocation, or a later start of its job (core/run/job_start.py)."""
    values = {key: value for key, value in to_jsonable(order).items() if value is not None}
    write_json(run.submission(name), values)


def read_work_order(run: RunDir, name: str) -> WorkOrder:
    """Return the work order in submissions/<name>.json.

    FileNotFoundError if there is none; ValueError or TypeError, naming the field, if the file is damaged.
    """
    return from_jsonable(WorkOrder, loads(text_of(run.submission(name))))


def newest_work_order(run: RunDir, allocation: str) -> WorkOrder:
    """Return the work order of the newest start of an allocation's job; errors as in `read_work_order`."""
    return read_work_order(run, run.newest_order(allocation))
