"""From cells to a report, for commands that only read the verdict: bisect, shrink, selftest, `explain --operations`.

The same steps with all that a user may do meanwhile: local_run.py and cluster_run.py, of `harness run` and `resume`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from harness.campaign import judging, launch, plan_run
from harness.core.run.report import Report
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Expansion, PlannedCell, RunPlan
from harness.core.stack import ReadyStack
from harness.core.tolerances import ToleranceOverrides
from harness.runs.lock import only_launcher


def run_cells(
    directory: RunDir,
    cells: Iterable[PlannedCell],
    *,
    name: str,
    matrix_file: str,
    command: Sequence[str],
    stacks: Mapping[str, ReadyStack],
    tolerances: ToleranceOverrides,
    stream: TextIO | None = None,
) -> Report:
    """Run cells that no matrix has, side by side on this machine, and judge them. `stream`: see `launch`."""
    expansion = Expansion(cells=tuple(cells), rejected=())
    plan = plan_run.plan_cells(expansion, name=name, file=matrix_file, command=command)
    plan = plan_run.in_stacks(replace(plan, tolerances=tolerances), stacks)
    return run(directory, plan, stream=stream)


def run(directory: RunDir, plan: RunPlan, *, stream: TextIO | None = None) -> Report:
    """Run a plan without a matrix on this machine, and judge it; its stacks are ready."""
    plan_run.write_plan(directory, plan)
    return follow(directory, plan, stream=stream)


def follow(directory: RunDir, plan: RunPlan, *, stream: TextIO | None = None) -> Report:
    """Run a plan that is written, here or on its cluster, and judge it; return when all cells have ended."""
    with only_launcher(directory):
        launch.launch(directory, plan, launch.launcher_of(directory), stream=stream)
    return judging.judge(directory, plan)
