"""The plan of a run: written to plan.json before anything starts, enough to judge the run again later."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Annotated, Any

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Lane, Rejection
from harness.core.run.records import SCHEMA_VERSION
from harness.core.run.states import CellRole
from harness.core.serialization import to_jsonable
from harness.core.setting import Limits, setting
from harness.core.stack import DEFAULT, ReadyStack
from harness.core.tolerances import ToleranceOverrides


def _iso_date(value: Any) -> str | None:
    """YAML reads an unquoted date as a date; a quoted one is text."""
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

    # over cell names: the id without its hash
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
    says: tuple[Annotated[str, Limits(min_length=1)], ...] = setting(
        (), doc="Texts that must each occur in a finding; otherwise the failure is another one: FAIL."
    )
    strict: bool = setting(False, doc="A cell that passes is a FAIL, not an XPASS.")


@dataclass(frozen=True, kw_only=True)
class PlannedCell:
    id: str
    axes: dict[str, Any]  # axis name -> resolved value, in matrix order, for tables
    config: CellConfig
    group: str  # parity group: cells of one group must compute the same numbers
    reference: str | None  # id of the group's control; None for the control itself
    base: str | None = None  # id of the same cell in the stack that this one is timed against, interleaved
    role: CellRole = "cell"
    xfail: XFail | None = None
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

    strength: int  # axes at a time
    cells: int  # that run
    allowed: int  # that it chose from
    covered: int  # t-tuples of values in a cell that runs
    possible: int  # in an allowed cell
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


@dataclass(frozen=True, kw_only=True)
class Expansion:
    cells: tuple[PlannedCell, ...]
    rejected: tuple[RejectedCell, ...]
    excluded: dict[str, int] = field(default_factory=dict)  # constraint -> combinations it dropped
    selection: Selection | None = None  # None: every allowed cell runs

    @property
    def circular(self) -> str | None:
        """A cell that is its own control, directly or through others; None in a sound plan."""
        reference = {cell.id: cell.reference for cell in self.cells}
        sound: set[str | None] = {None}
        for cell in self.cells:
            chain: dict[str, None] = {}
            above: str | None = cell.id
            while above is not None and above not in sound and above in reference:
                if above in chain:
                    return above
                chain[above] = None
                above = reference[above]
            sound.update(chain)
        return None

    @property
    def controls_first(self) -> list[PlannedCell]:
        """Every cell after its control."""
        known = {cell.id: cell for cell in self.cells}
        ordered: dict[str, PlannedCell] = {}
        for cell in self.cells:
            chain = [cell]
            while (above := chain[-1].reference) in known and above not in ordered:
                chain.append(known[above])
            ordered |= {item.id: item for item in reversed(chain) if item.id not in ordered}
        return list(ordered.values())


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
    turns: bool = False  # its cells are interleaved with those of another allocation, which must run at the same time


@dataclass(frozen=True, kw_only=True)
class HistoryAsked:
    """Times are compared with those of earlier green runs."""

    runs: int  # at most, the newest
    since: str = ""  # ISO date: only runs from this date on


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    run_id: str
    matrix_name: str
    matrix_file: str
    command: list[str]
    expansion: Expansion
    allocations: tuple[Allocation, ...]
    tolerances: ToleranceOverrides = field(default_factory=ToleranceOverrides)
    history: HistoryAsked | None = None
    peak_tflops: dict[str, float] = field(default_factory=dict)  # of one GPU by dtype, where the user gives it
    cluster: str | None = None  # as --cluster named it; None: as the matrix says
    max_attempts: int = 3  # of one cell, when the cluster ends it
    provenance: dict[str, Any] = field(default_factory=dict)
    stacks: dict[str, ReadyStack] = field(default_factory=dict)  # of its cells, without the default one
    seal: str = ""  # `seal_of` everything else in plan.json
    schema_version: int = SCHEMA_VERSION


def seal_of(plan: RunPlan) -> str:
    """Count of the cells and a digest of everything in the plan but its seal: "12 cells, 1f0c...".

    Without it a cell that was removed from plan.json would go unnoticed: what is not planned is not judged.
    """
    text = json.dumps(to_jsonable(replace(plan, seal="")), sort_keys=True)
    return f"{len(plan.expansion.cells)} cells, {hashlib.sha256(text.encode()).hexdigest()}"


def sealed(plan: RunPlan) -> RunPlan:
    """The plan with its seal, as in plan.json."""
    return replace(plan, seal=seal_of(plan))
