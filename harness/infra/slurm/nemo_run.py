"""Job files and submission by NeMo-Run's SlurmExecutor, for profiles with `launcher: nemo-run` (decision 23).

The job's contents are those of the default template; NeMo-Run writes the flags and srun's command line, and its
LocalTunnel runs sbatch. Its experiments are not used: they keep state in the user's home, and a run has its own.
Only this file imports nemo_run, when it is first needed: that takes five seconds.
"""

from __future__ import annotations

import dataclasses
import shlex
import warnings
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, Problem
from harness.core.run.run_dir import RunDir
from harness.infra.slurm.client import Answered
from harness.infra.slurm.sbatch_template import Job, exports, header, payload, sbatch_flags, setup_lines, srun_words
from harness.plan.jobs.cluster import ClusterProfile

# NeMo-Run replaces this everywhere in a job file by the folder of its job; no text of ours may contain it.
_REPLACED = "/nemo_run"
_UNREADABLE = "'\\"  # NeMo-Run quotes values for a shell, and sbatch reads these two in another way


def render_job(
    job: Job,
    profile: ClusterProfile,
    *,
    run: RunDir,
    run_id: str,
    command: Sequence[str],
    python: str,
    template: Path,
    env: Mapping[str, str] | None = None,
) -> str:
    """The text of a job file, like `sbatch_template.render_job`, but NeMo-Run's template takes the place of `template`.

    InputError where nemo_run is not installed, and for a value that NeMo-Run would change.
    """
    flags = dict(sbatch_flags(job, profile, run, run_id))
    words = srun_words(job.allocations[0].nodes, profile, run)[1:]
    task = f"bash -c {shlex.quote(payload(job, run, python, env, profile))}"
    setup = [
        "set +vx # setup lines may read secrets, which must not be in the log",
        *header(job, profile, run_id, command),
        "set -eo pipefail",
        *exports(profile),
        *setup_lines(profile),
    ]
    _check(flags, "\n".join([*words, task, *setup]))
    of_srun = list(takewhile(lambda word: word.startswith("--"), words))
    # srun takes the last of equal flags: its output goes to the job's, and no folder of NeMo-Run is needed.
    arguments = [f"--chdir={run.root}", "--output=all", *of_srun]
    in_container = [shlex.quote(word) for word in words[len(of_srun) :]]
    return _materialize(run, flags, arguments, "\n".join(setup), [*in_container, task])


def by_nemo_run(command: Sequence[str]) -> Answered:
    """Run a command as NeMo-Run's SlurmExecutor does on a login node. InputError where nemo_run is not installed."""
    tunnel = _nemo_run().LocalTunnel(job_dir="")
    ended = tunnel.run(shlex.join(command), hide=True, warn=True, in_stream=False)
    return Answered(code=ended.return_code, output=ended.stdout, error=ended.stderr)


def _materialize(
    run: RunDir, flags: Mapping[str, str | None], arguments: Sequence[str], setup: str, task: Sequence[str]
) -> str:
    nemo_run = _nemo_run()
    from nemo_run.core.execution.slurm import SlurmBatchRequest, SlurmJobDetails

    settings = {name.replace("-", "_"): True if value is None else value for name, value in flags.items()}
    own = {one.name for one in dataclasses.fields(nemo_run.SlurmExecutor) if one.init}
    executor = nemo_run.SlurmExecutor(
        **{"account": None, **{name: value for name, value in settings.items() if name in own}},
        # The rest, and what NeMo-Run would choose: the job's name, by which it is found, and its logs.
        additional_parameters={name: value for name, value in settings.items() if name not in own},
        job_name_prefix="harness.",
        # NeMo-Run 0.11 quotes no argument of srun.
        job_details=SlurmJobDetails(folder=shlex.quote(str(run.root))),
        srun_args=[shlex.quote(word) for word in arguments],
        setup_lines=setup,
        tunnel=nemo_run.LocalTunnel(job_dir=shlex.quote(str(run.root))),
        packager=nemo_run.Packager(),  # nodes see the harness and the run directory; nothing is copied
    )
    executor.job_dir = "submissions"
    request = SlurmBatchRequest(
        launch_cmd=["sbatch"],
        jobs=["agent"],
        command_groups=[list(task)],
        executor=executor,
        max_retries=0,  # the harness runs lost cells again, on other nodes
        extra_env={},
    )
    return str(request.materialize()) + "\n"


def _check(flags: Mapping[str, str | None], text: str) -> None:
    """InputError for a value that NeMo-Run or sbatch would not take as it is."""
    for name, value in flags.items():
        if value and set(value) & set(_UNREADABLE):
            raise InputError(f"sbatch --{name}: {value!r} has a quote or a backslash, which NeMo-Run cannot write")
    if _REPLACED in text or any(_REPLACED in (value or "") for value in flags.values()):
        raise InputError(
            f"NeMo-Run replaces {_REPLACED!r} in job files, and this run's have it in a path: choose another --run-dir "
            "or rename the folder"
        )


def _nemo_run() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies
            import nemo_run
    except ImportError as error:
        raise InputError(
            Problem(
                key="launcher",
                message=f"nemo-run cannot be imported: {error}",
                hint="pip install 'packing-harness[nemo-run]', or launcher: submitit",
            )
        ) from error
    return nemo_run
