"""Many nightly runs of one small matrix in one process, each planned, trained, judged and recorded as by `harness run`.

    python -m tests.cli.nights MATRIX FAULT...       a night for each FAULT; "clean" is a night without one

torch and Megatron are loaded once, and every night forks an agent from this process, so that a night takes one second
instead of five. Run directories and history are in `reports` beside the matrix. A fault is only in the configuration
that the ranks read, so plan, judge and history do not know it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.campaign import plan_run
from harness.campaign.finalize import judge_and_report
from harness.campaign.options import PlanOptions, RunOptions
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import RunPlan, WorkOrder, cell_attempts, write_work_order
from harness.core.serialization import loads
from harness.runtime import agent
from harness.runtime.load import loaded

CLEAN = "clean"


def night(matrix: Path, fault: str) -> int:
    """Run one night; returns the exit code of its verdict."""
    planned = plan_run.plan_run(matrix, PlanOptions())
    run = RunDir(matrix.resolve().parent / "reports" / planned.plan.run_id)
    plan_run.write_run(run, planned)
    configs = {
        file: loads(file.read_text()) for file in (run.attempt(cell.id).config for cell in planned.plan.expansion.cells)
    }
    for file, config in configs.items():
        write_json(file, config if fault == CLEAN else {**config, "fault": fault})
    _train(run, planned.plan)
    for file, config in configs.items():
        write_json(file, config)
    return judge_and_report(run, planned.plan, RunOptions()).code


def _train(run: RunDir, plan: RunPlan) -> None:
    for allocation in plan.allocations:
        cells = cell_attempts((cell, 1) for cell in allocation.cells)
        write_work_order(run, allocation.name, WorkOrder(cells=cells, parallel_ranks=1))
        child = os.fork()
        if child == 0:
            os._exit(agent_of(run, allocation.name))
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, run.root


def agent_of(run: RunDir, allocation: str) -> int:
    sys.argv = ["harness.runtime.agent", str(run.root), allocation, "--attached-to", str(os.getppid())]
    return agent.main()


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    loaded()
    matrix, *faults = sys.argv[1:]
    for fault in faults:
        print(f"{fault}: exit code {night(Path(matrix), fault)}", flush=True)


if __name__ == "__main__":
    main()
