"""`harness explain RUN CELL --operations`: trains a cell and its control again, and compares a layer's operations.

The run is RUN/operations/CELL/layer-N, on this machine, in the stack that the cell had, at its commits.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from harness.app.pipeline import judge_run, launch, plan_run
from harness.app.pipeline.local_run import refuse_changed_code
from harness.app.selection.cells import matching, select
from harness.app.selection.find_run import find_run
from harness.core.cell.config import CellConfig
from harness.core.cell.timing import NOT_TIMED
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.outcomes import EXIT_PASS
from harness.core.run.run_dir import RunDir, refuse_links
from harness.core.run.run_plan import Expansion, PlannedCell, RunPlan
from harness.core.run.tensor_records import OperationsSeen
from harness.core.serialization import dumps, to_jsonable
from harness.core.stack import ReadyStack
from harness.core.tolerances import tolerances_for
from harness.infra import screen
from harness.infra.console import say
from harness.infra.local_launcher import LocalLauncher
from harness.infra.runs.evidence_files import newest, read_operations, read_plan, read_result
from harness.infra.screen import relative_path
from harness.infra.stacks.prepare import prepare
from harness.infra.stacks.worktree_users import release
from harness.judge.diagnosis.operations import OperationsCompared, compare_operations
from harness.judge.diagnosis.operations_text import operations_text
from harness.plan.matrix.single_cell import pinned


def explain_operations(name: str, pattern: str, run_parent: Path, *, layer: int | None, as_json: bool) -> int:
    """Print the operations of a layer of a cell beside those of its control. `layer`: None for the first that differs.

    InputError unless the pattern matches one cell with a control, and the layer is known and exists.
    """
    directory = find_run(name, run_parent)
    plan = read_plan(directory)
    cell, control = _cell_and_control(plan, pattern)
    number = _layer(directory, plan, cell, layer)
    folder = directory.root / "operations" / cell.id / f"layer-{number}"
    ready = {name: stack for name, stack in plan.stacks.items() if name == cell.config.stack}
    refuse_changed_code(directory, ready, "restore it: operations of other code do not explain this run")
    say(f"training {cell.id} and its control again, to observe the forward passes of layer {number}")
    run = _run(directory, folder, plan, (control, cell), number)
    compared = _compared(run, plan, cell, control)
    if as_json:
        head = {"schema_version": 1, "cell": cell.id, "control": control.id, "run": str(folder)}
        screen.json_data(dumps(head | to_jsonable(compared), indent=2) + "\n")
    else:
        screen.out(screen.wrapped(f"{cell.id}\ncontrol {control.id}\n{operations_text(compared)}"))
        screen.out(f"records: {relative_path(folder)}")
    return EXIT_PASS


def _cell_and_control(plan: RunPlan, pattern: str) -> tuple[PlannedCell, PlannedCell]:
    known = {cell.id: cell for cell in plan.expansion.cells}
    chosen = [known[name] for name in matching(plan.expansion, pattern)]
    compared = [cell for cell in chosen if cell.control in known]
    if len(compared) != 1:
        found = "is a control, which is compared with nothing" if not compared else f"{len(compared)} cells match"
        allowed = ", ".join(cell.id for cell in compared[:3]) or "a cell that has a control"
        raise InputError(Problem(message=f"{pattern}: {found}", allowed=allowed))
    (cell,) = compared
    return cell, known[str(cell.control)]


def _layer(directory: RunDir, plan: RunPlan, cell: PlannedCell, layer: int | None) -> int:
    """The layer to look at: as given, or that of the cell's first finding that has one."""
    layers = cell.config.model.layers
    if layer is not None:
        if layer > layers:
            raise InputError(
                Problem(message=f"--layer {layer}: no such layer", allowed=f"0 (the embedding) to {layers}")
            )
        return layer
    report = judge_run.judge(directory, replace(plan, expansion=select(plan.expansion, [cell.id])))
    findings = next((one.findings for one in report.cells if one.id == cell.id), [])
    named = [finding.where["layer"] for finding in findings if isinstance(finding.where.get("layer"), int)]
    if not named:
        hint = f"name one with --layer: 0 (the embedding) to {layers}"
        raise InputError(Problem(message=f"no finding of {cell.id} names a layer", hint=hint))
    return int(named[0])


def _run(directory: RunDir, folder: Path, plan: RunPlan, cells: tuple[PlannedCell, ...], layer: int) -> RunDir:
    """Run the cells with nothing but their training, in a new run."""
    stacks = _stacks(plan, cells[-1], str(folder))
    refuse_links(folder)
    shutil.rmtree(folder, ignore_errors=True)
    recorded = tuple(replace(cell, config=_recording(cell.config, layer), base=None) for cell in cells)
    command = ["harness", "explain", str(directory.root), cells[-1].id, "--operations", "--layer", str(layer)]
    made = plan_run.plan_cells(
        Expansion(cells=recorded, rejected=()), name="operations", file=plan.matrix_file, command=command
    )
    made = plan_run.in_stacks(replace(made, tolerances=plan.tolerances), stacks)
    run = RunDir(folder)
    try:
        plan_run.write_plan(run, made, None)
        launch.launch(run, made, LocalLauncher(), stream=sys.stderr)
    finally:
        release(str(folder))
    return run


def _recording(config: CellConfig, layer: int) -> CellConfig:
    return replace(config, operations=layer, canaries=(), timing=NOT_TIMED, fingerprints=False)


def _stacks(plan: RunPlan, cell: PlannedCell, user: str) -> dict[str, ReadyStack]:
    """The stack of a cell at the commits that it had; empty for the environment of the harness."""
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


def _compared(run: RunDir, plan: RunPlan, cell: PlannedCell, control: PlannedCell) -> OperationsCompared:
    bound = tolerances_for(cell.config.dtype, plan.tolerances).activation
    return compare_operations(_operations(run, cell), _operations(run, control), bound)


def _operations(run: RunDir, cell: PlannedCell) -> dict[int, OperationsSeen]:
    found = read_operations(run.attempt(cell.id, newest(run, cell.id)))
    if found:
        return found
    result = read_result(run, cell.id)
    why = result.reason if result and result.reason else "no rank reached the layer"
    logs = f"`harness logs {relative_path(run.root)} {cell.id}`"
    raise InfrastructureError(f"{cell.id} recorded no operation: {why}; see {logs}")
