"""The cells that an agent must run: written by a launcher, or by the agent of a job that Slurm restarted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.run.run_dir import RunDir, text_of, write_json
from harness.core.serialization import from_jsonable, loads, to_jsonable


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
    more: bool | None = None  # the launcher is about to write the file again, with further cells; None: no
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
    """The work order in submissions/<name>.json.

    FileNotFoundError if there is none; ValueError or TypeError, naming the field, if the file is damaged.
    """
    return from_jsonable(WorkOrder, loads(text_of(run.submission(name))))


def newest_work_order(run: RunDir, allocation: str) -> WorkOrder:
    """The work order of the newest start of an allocation's job; errors as in `read_work_order`."""
    return read_work_order(run, run.newest_order(allocation))
