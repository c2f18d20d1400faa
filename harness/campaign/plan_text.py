"""What `harness plan` prints, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.cell.axes import always
from harness.core.run.run_plan import Allocation, Expansion, PlannedCell, RejectedCell, Selection
from harness.core.serialization import dumps
from harness.core.text import counted, duration
from harness.launch.allocations import Cost, JobCost, estimate, plan_allocations
from harness.matrix.arguments import Profile

MAX_ROWS = 50
_SHORT_NOTE = len("control, added")


def plan_text(
    expansion: Expansion,
    *,
    all_rows: bool = False,
    cores: int = 1,
    jobs: Sequence[JobCost] = (),
    stacks: Sequence[str] = (),
    profiles: Mapping[str, Profile] | None = None,
    to_make: bool = False,
    width: int | None = None,
) -> str:
    """Return the cells, rejected cells with rule and arithmetic, excluded combinations, totals and cost.

    At most 50 rows of each kind unless `all_rows`, and the number of rows left out. `cores`: of the machine that runs
    the cells; `jobs`: cost of the jobs if a cluster runs them. `stacks`: a line per environment or worktree.
    `profiles`: those of the matrix; shown is what they set, and what is left out of them. `to_make`: a stack must be
    made first. `width`: of the terminal; axes for which the table has no room are named below it.
    """
    cost = estimate(expansion, cores=cores)
    limit = None if all_rows else MAX_ROWS
    lines = [f"{counted(cost.cells, 'cell')} to run, {cost.rejected} rejected, {cost.excluded} excluded"]
    lines += ["", "Selected", *_indent(_selection_lines(expansion.selection))] if expansion.selection else []
    lines += ["", "Cells", *_indent(_cell_table(expansion.cells[:limit], width and width - 2))]
    lines += _more(len(expansion.cells), limit)
    if expansion.rejected:
        lines += ["", "Rejected by a rule", *_rejected_lines(expansion.rejected[:limit])]
        lines += _more(len(expansion.rejected), limit)
    if expansion.excluded:
        lines += ["", "Excluded by a constraint"]
        lines += [f"  {counted(count, 'combination')} by {text}" for text, count in expansion.excluded.items()]
    lines += [line for name, profile in (profiles or {}).items() for line in _profile_lines(name, profile)]
    lines += ["", "Stacks", *_indent(list(stacks))] if stacks else []
    lines += ["", *_cost_lines(cost), *(_job_lines(jobs) if jobs else [_time_line(cost, to_make)])]
    return "\n".join(lines)


def _profile_lines(name: str, profile: Profile) -> list[str]:
    """Return what the profile sets, since the matrix does not, and what is left out of it, by the reason."""
    if not profile.taken and not profile.left_out:
        return []
    lines = ["", f"Profile {name}"]
    if profile.taken:
        lines.append("  sets " + ", ".join(f"{key} {value}" for key, value in profile.taken.items()))
    return lines + [f"  leaves out {' '.join(flags)}: {reason}" for reason, flags in profile.left_out.items()]


def plan_json(
    expansion: Expansion,
    *,
    cores: int = 1,
    allocations: Sequence[Allocation] | None = None,
    jobs: Sequence[JobCost] = (),
    stacks: Sequence[Any] = (),
    profiles: Mapping[str, Profile] | None = None,
) -> str:
    """Return what `plan_text` shows as JSON text, never shortened. `allocations`: given for a cluster."""
    values = {
        "cells": [_cell_json(cell) for cell in expansion.cells],
        "rejected": [
            {
                "id": cell.id,
                "axes": cell.axes,
                "line": cell.line,
                "rule": cell.rejections[0].rule,
                "reason": cell.rejections[0].reason,
                "rejections": cell.rejections,
            }
            for cell in expansion.rejected
        ],
        "excluded": expansion.excluded,
        "selection": _selection_json(expansion.selection),
        "allocations": plan_allocations(expansion) if allocations is None else allocations,
        "cost": estimate(expansion, cores=cores),
        "jobs": [_job_json(job) for job in jobs],
        "stacks": stacks,
        "profiles": {
            name: {"taken": profile.taken, "left_out": profile.left_out} for name, profile in (profiles or {}).items()
        },
    }
    return dumps(values, indent=2)


def _selection_json(selection: Selection | None) -> dict[str, Any] | None:
    if selection is None:
        return None
    return {**vars(selection), "left_out": selection.left_out, "text": selection.text}


def _job_json(job: JobCost) -> dict[str, Any]:
    return {
        "array": job.array,
        "jobs": job.jobs,
        "nodes": job.nodes,
        "gpus": job.gpus,
        "time_limit_min": job.time_limit_min,
        "gpu_hours": job.gpu_hours,
        "most_gpu_hours": job.most_gpu_hours,
        "node_hours": job.node_hours,
        "most_node_hours": job.most_node_hours,
    }


def _cell_json(cell: PlannedCell) -> dict[str, Any]:
    return {
        "id": cell.id,
        "axes": cell.axes,
        "ranks": cell.config.layout.world_size,
        "group": cell.group,
        "role": cell.role,
        "control": cell.control,
        "xfail": cell.xfail,
        "may_reject": cell.may_reject,
        "line": cell.line,
    }


def _cell_table(cells: Sequence[PlannedCell], width: int | None) -> list[str]:
    """Return the columns: id, the axes that vary, as many as fit, ranks, a note."""
    shown = [
        name
        for name in (cells[0].axes if cells else ())
        if name in always() or len({cell.axes.get(name) for cell in cells}) > 1
    ]
    rows = [["id", *shown, "ranks", ""]]
    for cell in cells:
        values = [_value(cell.axes.get(name)) for name in shown]
        rows.append([cell.id, *values, str(cell.config.layout.world_size), _note(cell)])
    count = len(shown)
    while width is not None and count and _wide(rows) > width:
        count -= 1
        rows = [[*row[: count + 1], *row[-2:]] for row in rows]
    return [*_aligned(rows), *([f"no room for: {', '.join(shown[count:])}"] if count < len(shown) else [])]


def _wide(rows: Sequence[Sequence[str]]) -> int:
    """Return the columns of the longest line; a long note may be broken."""
    *sizes, note = (max(len(row[column]) for row in rows) for column in range(len(rows[0])))
    return sum(sizes) + 2 * (len(sizes) - 1) + (min(note, _SHORT_NOTE) + 2 if note else 0)


def _note(cell: PlannedCell) -> str:
    notes = []
    if cell.role == "control":
        notes.append("control, added")
    elif cell.control is None:
        notes.append("control")
    if cell.xfail:
        until = f" until {cell.xfail.expires}" if cell.xfail.expires else ""
        notes.append(f"known failure{until}: {cell.xfail.reason}")
    if cell.may_reject:
        notes.append(f"may be rejected: {cell.may_reject}")
    return "; ".join(notes)


def _selection_lines(selection: Selection) -> list[str]:
    """Return what is covered, what is left out, what is always kept, and why some t-tuples are in no cell."""
    always_kept = [
        f"always kept: {counted(cells, 'cell') if cells else 'no such cell'}, {why}"
        for why, cells in selection.kept.items()
    ]
    impossible = [f"not possible: {count}, {reason}" for reason, count in selection.impossible.items()]
    left_out = f"left out: {counted(selection.left_out, 'cell')} (select: full runs every cell)"
    return [selection.text, left_out, *always_kept, *impossible]


def _rejected_lines(rejected: Sequence[RejectedCell]) -> list[str]:
    lines = []
    for cell in rejected:
        lines.append(f"  {cell.id}" + (f"  (line {cell.line})" if cell.line else ""))
        for rejection in cell.rejections:
            lines += [f"    {rejection.rule}: {rejection.reason}", f"      source: {rejection.source}"]
    return lines


def _cost_lines(cost: Cost) -> list[str]:
    return [
        f"Total: {counted(cost.cells, 'cell')}, {counted(cost.ranks, 'rank process', 'rank processes')} "
        f"(largest cell {cost.largest_world}), {counted(cost.rank_steps, 'rank-step')}",
    ]


def _time_line(cost: Cost, to_make: bool) -> str:
    more = ", and the time to make the stacks that are not made yet" if to_make else ""
    return f"Estimated time: about {duration(cost.seconds)}{more} (a rough estimate from {cost.basis})"


def _job_lines(jobs: Sequence[JobCost]) -> list[str]:
    """Return the arrays that are submitted, and their cost in GPU-hours, or node-hours without GPUs."""
    rows = [["array", "jobs", "nodes", "GPUs", "minutes at most"]]
    rows += [[job.array, *map(str, (job.jobs, job.nodes, job.gpus, job.time_limit_min))] for job in jobs]
    if any(job.gpus for job in jobs):
        unit, most, about = "GPU-hours", sum(job.most_gpu_hours for job in jobs), sum(job.gpu_hours for job in jobs)
    else:
        unit, most, about = "node-hours", sum(job.most_node_hours for job in jobs), sum(job.node_hours for job in jobs)
    return [
        f"Submits: {counted(len(jobs), 'array')}, {counted(sum(job.jobs for job in jobs), 'job')}",
        *_indent(_aligned(rows)),
        f"Cost: {most:.4g} {unit} if every job runs into its time limit; about {about:.2g} by a rough estimate",
    ]


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _more(total: int, limit: int | None) -> list[str]:
    return [f"  ... and {total - limit} more (--all shows them)"] if limit is not None and total > limit else []


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
