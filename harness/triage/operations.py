"""`harness explain RUN CELL --operations`: trains a cell again, and compares a layer's operations with the oracle's.

Where the oracle did not compute the cell, its control is trained too, and is compared with.

The run is RUN/operations/CELL/layer-N, on this machine, in the stack that the cell had, at its commits.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.campaign import campaign, judging
from harness.campaign.local_run import refuse_changed_code
from harness.campaign.selection import find_run, matching, select
from harness.core.cell.config import CellConfig
from harness.core.cell.timing import NOT_TIMED
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.outcomes import EXIT_PASS
from harness.core.run.run_dir import RunDir, refuse_links
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.core.run.tensor_records import OperationsSeen
from harness.core.serialization import dumps, to_jsonable
from harness.core.stack import ReadyStack
from harness.core.tolerances import tolerances_for
from harness.infra import screen
from harness.infra.screen import relative_path
from harness.judge.stats.noise import noise_floors
from harness.launch.stacks.checkout import release_worktrees
from harness.launch.stacks.prepare import prepare
from harness.matrix.load import pinned
from harness.reporting.console import say
from harness.runs.evidence_files import newest, read_cell, read_operations, read_plan, read_result
from harness.triage.operation_differences import OperationsCompared, compare_operations, operations_text


def explain_operations(name: str, pattern: str, run_parent: Path, *, layer: int | None, as_json: bool) -> int:
    """Print the operations of a layer of a cell beside those of its reference.

    `layer`: None for the first that differs. InputError unless the pattern matches one cell with a reference, and the
    layer is known and exists.
    """
    directory = find_run(name, run_parent)
    plan = read_plan(directory)
    cell, control = _cell_and_control(directory, plan, pattern)
    number = _layer(directory, plan, cell, layer)
    folder = directory.root / "operations" / cell.id / f"layer-{number}"
    ready = {name: stack for name, stack in plan.stacks.items() if name == cell.config.stack}
    refuse_changed_code(directory, ready, "restore it: operations of other code do not explain this run")
    trained = [planned for planned in (control, cell) if planned is not None]
    who = " and ".join(planned.id for planned in trained)
    say(f"training {who} again, to observe the forward passes of layer {number}")
    run = _run(directory, folder, plan, trained, number)
    compared = _compared(run, plan, cell, control)
    if as_json:
        head = {"schema_version": 2, "cell": cell.id, "control": control.id if control else None, "run": str(folder)}
        screen.json_data(dumps(head | to_jsonable(compared), indent=2) + "\n")
    else:
        names = f"{cell.id}\ncontrol {control.id}" if control else cell.id
        screen.out(screen.wrapped(f"{names}\n{operations_text(compared)}"))
        screen.out(f"records: {relative_path(folder)}")
    return EXIT_PASS


def _cell_and_control(directory: RunDir, plan: RunPlan, pattern: str) -> tuple[PlannedCell, PlannedCell | None]:
    """Return the cell that a pattern matches, and its control if the oracle did not compute the cell."""
    known = {cell.id: cell for cell in plan.expansion.cells}
    chosen = matching(plan.expansion, pattern)
    if len(chosen) != 1:
        names = ", ".join(chosen[:3])
        raise InputError(Problem(message=f"{pattern}: {len(chosen)} cells match", allowed=f"one of them: {names}"))
    cell = known[chosen[0]]
    files = read_cell(directory, cell.id, {})
    if files.damaged:
        raise InfrastructureError(f"{cell.id}: {files.damaged[0]}")
    oracle = files.oracle
    if oracle is not None and oracle.record is not None:
        return cell, None
    if cell.control not in known:
        raise InputError(Problem(message=f"{cell.id}: the oracle did not compute it, and it has no control"))
    return cell, known[str(cell.control)]


def _layer(directory: RunDir, plan: RunPlan, cell: PlannedCell, layer: int | None) -> int:
    """Return the layer to look at: as given, or that of the cell's first finding that has one."""
    layers = cell.config.model.layers
    if layer is not None:
        if layer > layers:
            raise InputError(
                Problem(message=f"--layer {layer}: no such layer", allowed=f"0 (the embedding) to {layers}")
            )
        return layer
    report = judging.judge(directory, replace(plan, expansion=select(plan.expansion, [cell.id])))
    findings = next((judged.findings for judged in report.cells if judged.id == cell.id), [])
    named = [finding.where["layer"] for finding in findings if isinstance(finding.where.get("layer"), int)]
    if not named:
        hint = f"name one with --layer: 0 (the embedding) to {layers}"
        raise InputError(Problem(message=f"no finding of {cell.id} names a layer", hint=hint))
    return int(named[0])


def _run(directory: RunDir, folder: Path, plan: RunPlan, cells: Sequence[PlannedCell], layer: int) -> RunDir:
    """Run the cells with nothing but their training, in a new run."""
    stacks = _stacks(plan, cells[-1], str(folder))
    refuse_links(folder)
    shutil.rmtree(folder, ignore_errors=True)
    recorded = [replace(cell, config=_recording(cell.config, layer), base=None) for cell in cells]
    command = ["harness", "explain", str(directory.root), cells[-1].id, "--operations", "--layer", str(layer)]
    run = RunDir(folder)
    try:
        campaign.run_cells(
            run,
            recorded,
            name="operations",
            matrix_file=plan.matrix_file,
            command=command,
            stacks=stacks,
            tolerances=plan.tolerances,
            stream=sys.stderr,
        )
    finally:
        release_worktrees(str(folder))
    return run


def _recording(config: CellConfig, layer: int) -> CellConfig:
    return replace(config, operations=layer, canaries=(), timing=NOT_TIMED, fingerprints=False)


def _stacks(plan: RunPlan, cell: PlannedCell, user: str) -> dict[str, ReadyStack]:
    """Return the stack of a cell at the commits that it had; empty for the environment of the harness."""
    ready = plan.stacks.get(cell.config.stack)
    if ready is None:
        return {}
    if ready.requested.container:
        raise InputError(
            Problem(
                message=f"{cell.id}: its stack {ready.requested.name} is a container, and cells run on this machine"
            )
        )
    stacks = prepare([pinned(ready)], say, user=user)
    if errors := [stack.error for stack in stacks.values() if not stack.usable]:
        raise InfrastructureError(f"stack {ready.requested.name} cannot be prepared again: {errors[0]}")
    return stacks


def _compared(run: RunDir, plan: RunPlan, cell: PlannedCell, control: PlannedCell | None) -> OperationsCompared:
    recorded, oracle = _operations(run, cell)
    if control is not None:
        of_control = _operations(run, control)[0]
        bounds = tolerances_for(cell.config.dtype, plan.tolerances)
        return compare_operations(recorded, of_control[min(of_control)], bounds.activation, "control")
    record = read_cell(run, cell.id, {}).oracle
    if oracle is None or record is None or record.record is None:
        why = record.failed or record.not_modelled if record else "its ranks did not complete"
        raise InfrastructureError(f"{cell.id}: the oracle did not compute it this time: {why}")
    floors = noise_floors({0: record.record})
    bounds = tolerances_for(cell.config.dtype, plan.tolerances, floors, by_oracle=True)
    return compare_operations(recorded, oracle, bounds.activation, "oracle")


def _operations(run: RunDir, cell: PlannedCell) -> tuple[dict[int, OperationsSeen], OperationsSeen | None]:
    recorded = read_operations(run.attempt(cell.id, newest(run, cell.id)))
    if recorded[0]:
        return recorded
    result = read_result(run, cell.id)
    why = result.reason if result and result.reason else "no rank reached the layer"
    logs = f"`harness logs {relative_path(run.root)} {cell.id}`"
    raise InfrastructureError(f"{cell.id} recorded no operation: {why}; see {logs}")
