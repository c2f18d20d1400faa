"""A run as jobs of a cluster. The jobs outlive the launcher; a resume follows them, and submits what was not."""

from __future__ import annotations

import shlex

from harness.campaign import judging, launch, plan_run
from harness.campaign.finalize import RunResult, judge_and_report
from harness.campaign.options import RunOptions
from harness.core.outcomes import EXIT_INTERRUPTED, EXIT_PASS
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.infra import screen
from harness.infra.screen import relative_path
from harness.launch.slurm.client import SlurmClient
from harness.launch.slurm.follow import Follower, retry_requested
from harness.launch.slurm.launcher import close_ended
from harness.reporting.console import say
from harness.runs.lock import only_launcher


def start(directory: RunDir, planned: plan_run.Planned, options: RunOptions) -> RunResult:
    """Submit the jobs of a plan; follow and judge them, unless `options.detach`."""
    plan_run.write_run(directory, planned)
    if not options.detach:
        return resume(directory, planned.plan, options, errors=False)
    with only_launcher(directory):
        count = launch.launcher_of(directory).submit(directory, planned.plan, say)
    screen.out(f"{planned.plan.run_id}: {count} jobs submitted\n{_next_commands(directory)}")
    return RunResult(code=EXIT_PASS)


def resume(directory: RunDir, plan: RunPlan, options: RunOptions, *, errors: bool) -> RunResult:
    """Submit the jobs not submitted yet, follow all, judge and report. Ctrl-C leaves the jobs running.

    `errors`: also retry the cells that ended as ERROR. Lost cells are retried only while a launcher follows.
    """
    try:
        with only_launcher(directory):
            if errors:
                _retry_errors(directory, plan)
            launch.launch(directory, plan, launch.launcher_of(directory))
    except KeyboardInterrupt:
        screen.out(f"detached; the jobs keep running\n{_next_commands(directory)}")
        return RunResult(code=EXIT_INTERRUPTED)
    return judge_and_report(directory, plan, options)


def _next_commands(directory: RunDir) -> str:
    name = shlex.quote(relative_path(directory.root))
    return (
        f"  follow and judge: harness resume {name}\n"
        f"  progress:         harness status {name}\n"
        f"  end the jobs:     harness cancel {name}"
    )


def _retry_errors(directory: RunDir, plan: RunPlan) -> None:
    """Write new attempts of the cells that ended as ERROR, also in jobs that ended since a launcher followed them."""
    client = SlurmClient()
    close_ended(directory, plan, Follower(directory, launch.Listener(directory), client), client)
    wanted = judging.ended_as_error(directory, plan)
    directory.cancelled.unlink(missing_ok=True)  # the user wants jobs again
    made = retry_requested(directory, plan, wanted)
    screen.out(f"retrying {sum(len(one.cells) for one in made)} cells that ended as ERROR")
