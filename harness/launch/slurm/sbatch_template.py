"""Renders job files. No text of a matrix, a profile or a path reaches a shell unquoted.

A template prints lines that this file has quoted (`Quoted`), or plain values, which are quoted when they are printed.
Documented in docs/clusters.md.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness.core.errors import InputError
from harness.core.hardware import AGENT_VARIABLES, DETERMINISM_VARIABLES, WITHOUT_VARIABLE
from harness.core.run.run_dir import RunDir, path_component
from harness.core.run.run_plan import Allocation
from harness.infra import templating
from harness.matrix.cluster import ClusterProfile, Container, has_control

# Ranks of untimed cells set the rest of what determinism needs; a profile may override it (docs/clusters.md).
DEFAULTS = {"CUDA_DEVICE_MAX_CONNECTIONS": AGENT_VARIABLES["CUDA_DEVICE_MAX_CONNECTIONS"]}
_PLAIN = re.compile(r"[A-Za-z0-9_./:,@%+=^&|*\[\]-]+")
_JOB_NAME = 64  # characters
_ARRAY_NAME = 40  # of these for the array, so that the run's time and hex digits have room


class Quoted(str):
    """Text that is already quoted."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """One submission: an array of allocations of one shape, or a single allocation."""

    name: str  # of its files: submissions/<name>.sbatch
    allocations: tuple[Allocation, ...]
    throttle: int = 64  # members that may run at once
    exclude: tuple[str, ...] = ()  # nodes, in addition to the profile's

    @property
    def is_array(self) -> bool:
        return len(self.allocations) > 1


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
    """Return the text of a job file. `command`: the harness command that made it; `python`: interpreter on the nodes.

    `env`: variables of agents that run in another stack; None for the harness's own environment.

    Deterministic. InputError for a template with errors, and for a value that cannot be written safely.
    """
    flags = [_sbatch_flag(name, value) for name, value in sbatch_flags(job, profile, run, run_id)]
    nodes = job.allocations[0].nodes
    values = {
        "header": [Quoted(line) for line in header(job, profile, run_id, command)],
        "sbatch": [Quoted(f"#SBATCH {flag}") for flag in flags],
        "environment": [Quoted(line) for line in exports(profile)],
        "setup": [Quoted(line) for line in setup_lines(profile)],
        "srun": Quoted(" \\\n  ".join(shlex.quote(word) for word in srun_words(nodes, profile, run))),
        "payload": Quoted(shlex.quote(payload(job, run, python, env, profile))),
        "job": job,
        "profile": profile,
        "run_id": run_id,
        "run_dir": str(run.root),
    }
    return templating.render_user_template(template, values, finalize=_quoted)


def header(job: Job, profile: ClusterProfile, run_id: str, command: Sequence[str]) -> list[str]:
    """Return the comments that say what made the file."""
    first = job.allocations[0]
    members = f"array {first.array} of {len(job.allocations)} jobs" if job.is_array else f"allocation {first.name}"
    lines = (
        f"packing-harness {harness.__version__}, run {run_id}, {members}, cluster {profile.name}",
        f"Command: {shlex.join(command)}",
    )
    return [f"# {_visible(line)}" for line in lines]


def exports(profile: ClusterProfile) -> list[str]:
    """Return the lines that export the variables of the job, quoted for the shell."""
    return [f"export {name}={shlex.quote(value)}" for name, value in environment_of(profile)]


def setup_lines(profile: ClusterProfile) -> list[str]:
    """Return the profile's own lines of shell, which run before the agents."""
    return [_safe(line, "setup") for line in profile.setup]


def environment_of(profile: ClusterProfile) -> list[tuple[str, str]]:
    """Return the environment of the job: defaults, which the profile's variables override or remove."""
    without = [name for name in DETERMINISM_VARIABLES if name in profile.env and profile.env[name] is None]
    merged: dict[str, str | None] = {
        **DEFAULTS,
        **profile.env,
        **({WITHOUT_VARIABLE: ",".join(without)} if without else {}),
    }
    return [(name, _safe(value, f"env.{name}")) for name, value in merged.items() if value is not None]


def job_name(run_id: str, array: str) -> str:
    """Return the unique name of a submission, by which its job is found: at most 64 characters.

    The run's time and hex digits, which identify it, are kept; the end of a long array name is replaced by a digest.
    """
    if len(array) > _ARRAY_NAME:
        array = f"{array[: _ARRAY_NAME - 17]}-{hashlib.sha256(array.encode()).hexdigest()[:16]}"
    return f"{run_id}.{array}"[-_JOB_NAME:].lstrip("._-")


def array_indices(indices: Sequence[int]) -> str:
    """Return the indices in the form of sbatch --array: 0-3,7."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(begin) if begin == end else f"{begin}-{end}" for begin, end in spans)


def sbatch_flags(job: Job, profile: ClusterProfile, run: RunDir, run_id: str) -> list[tuple[str, str | None]]:
    """Return the names of flags, without dashes, and their values; None for a flag that has no value."""
    first = job.allocations[0]
    log = f"{_no_expansion(run.submission(job.name, ''))}.{'%A_%a' if job.is_array else '%j'}"
    requested: dict[str, str | int | None] = {
        "job-name": job_name(run_id, first.array),
        "comment": None if _has_comment(profile) else f"packing-harness:{run_id}",
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "reservation": profile.reservation,
        "constraint": profile.constraint,
        "exclude": ",".join((*profile.exclude, *job.exclude)) or None,
        "nodes": first.nodes,
        "ntasks-per-node": 1,  # one agent, which forks the ranks
        "cpus-per-task": profile.cpus_per_task,
        **_gpus(profile, first.ranks_per_node),
        "mem": profile.mem,
        "time": first.time_limit_min or profile.time,
        "array": _array(job) if job.is_array else None,
        "output": f"{log}.out",
        "error": f"{log}.err",
        # A requeued job writes to the same log; truncating would lose why the first start ended.
        "open-mode": "append",
        "signal": profile.signal,
    }
    flags: list[tuple[str, str | None]] = [
        (name, _safe(str(value), f"sbatch --{name}")) for name, value in requested.items() if value is not None
    ]
    flags += [("exclusive", None)] if profile.exclusive else []
    # Written out in both cases, since sites differ in their default (JobRequeue).
    flags.append(("requeue" if profile.requeue else "no-requeue", None))
    return flags + [_profile_flag(flag) for flag in profile.sbatch_flags]


def _has_comment(profile: ClusterProfile) -> bool:
    """Return whether the profile sets --comment, which sites read: ours is only for people, since jobs are found by
    name.
    """
    # sbatch, like all users of getopt_long, takes unambiguous beginnings of a flag.
    return any("--comment".startswith(flag.partition("=")[0]) for flag in profile.sbatch_flags)


def _gpus(profile: ClusterProfile, ranks_per_node: int) -> dict[str, str | int | None]:
    count = profile.gpus_of(ranks_per_node)
    if not count or profile.gpu_flag == "none":
        return {}
    return {"gres": f"{profile.gres}:{count}"} if profile.gpu_flag == "gres" else {"gpus-per-node": count}


def _array(job: Job) -> str:
    indices = array_indices([allocation.index for allocation in job.allocations])
    return f"{indices}%{min(job.throttle, len(job.allocations))}"


def srun_words(nodes: int, profile: ClusterProfile, run: RunDir) -> list[str]:
    """Return srun with its flags, one word each.

    --nodes, --ntasks, --ntasks-per-node: written out, since variables like SLURM_NTASKS would set them otherwise.

    --kill-on-bad-exit=1: when an agent dies, the agents of the other nodes would wait for it in every cell that
    follows, until the cell's deadline. Ended at once, the job's remaining cells can run again elsewhere.
    --wait=0: otherwise the site's WaitTime would end the other agents after the first has ended.
    --cpu-bind=none: the ranks are forked by the one task of a node and need all its cores.
    --cpus-per-task is repeated because srun does not inherit it from sbatch (Slurm 22.05 and later).
    """
    words = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    words += ["--kill-on-bad-exit=1", "--cpu-bind=none", "--unbuffered", "--wait=0"]
    if profile.cpus_per_task:
        words.append(f"--cpus-per-task={profile.cpus_per_task}")
    words += profile.srun_flags
    if profile.container:
        words += _container(profile.container, run.root, with_gpus=profile.gpus_per_node > 0)
    return [_safe(word, "srun") for word in words]


def _container(container: Container, run: Path, *, with_gpus: bool) -> list[str]:
    """Return how srun starts its task in a container: flags of the pyxis plugin, or a command before the task's own."""
    mounts = ",".join((f"{_mountable(run)}:{run}", *container.mounts))
    if container.runtime == "pyxis":
        words = [f"--container-image={container.image}", f"--container-mounts={mounts}"]
        return words + ([f"--container-workdir={container.workdir}"] if container.workdir else [])
    words = ["apptainer", "exec", *(["--nv"] if with_gpus else []), f"--bind={mounts}"]
    return words + ([f"--pwd={container.workdir}"] if container.workdir else []) + [container.image]


def payload(job: Job, run: RunDir, python: str, env: Mapping[str, str] | None, profile: ClusterProfile) -> str:
    """Return the command that bash runs on every node; the SLURM variables are expanded there, not in the batch script.

    Variables are set here, inside the container, since those of an image override the job's. Another stack runs
    in the run directory, since `python -m` looks for modules in the current folder first.
    """
    first = job.allocations[0]
    inside = dict(environment_of(profile)) if profile.container else {}
    pairs = [f"{name}={value}" for name, value in {**inside, **(env or {})}.items()]
    # PYTHONHOME of the harness's interpreter would give another interpreter the wrong standard library.
    begin = ["env", *(["-u", "PYTHONHOME"] if env is not None else []), *pairs] if pairs or env is not None else []
    argv = (*begin, python, "-m", "harness.runtime.agent", str(run.root))
    words = [shlex.quote(_safe(word, "payload")) for word in argv]
    folder = "" if env is None else f"cd {shlex.quote(str(run.root))} && "
    member = f'{path_component(first.array)}-"$SLURM_ARRAY_TASK_ID"' if job.is_array else path_component(first.name)
    return folder + " ".join(["exec", *words, member, '--node "$SLURM_NODEID"', f"--nodes {first.nodes}"])


def _profile_flag(flag: str) -> tuple[str, str | None]:
    name, equals, value = _safe(flag, "sbatch_flags").removeprefix("--").partition("=")
    return name, value if equals else None


def _sbatch_flag(name: str, value: str | None) -> str:
    """Return a flag on an #SBATCH line: sbatch splits at blanks and knows double quotes with backslash escapes."""
    if value is None:
        return f"--{name}"
    plain = _PLAIN.fullmatch(value)
    return f"--{name}=" + (value if plain else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"')


def _no_expansion(path: Path) -> str:
    """Return a path in which sbatch replaces nothing: %% means %; a backslash would switch replacement off."""
    text = str(path)
    if "\\" in text:
        raise InputError(
            f"{text!r}: sbatch cannot write logs below a folder with a backslash; choose another --run-dir"
        )
    return text.replace("%", "%%")


def _mountable(path: Path) -> Path:
    if re.search(r"[,:]", str(path)):
        raise InputError(f"{str(path)!r}: a container cannot mount a path with ',' or ':'; choose another --run-dir")
    return path


def _safe(text: str, where: str) -> str:
    if has_control(text):
        raise InputError(f"{where}: {text!r} contains a control character, which no job file may contain")
    return text


def _visible(text: str) -> str:
    """Return the text as one line for a comment, control characters escaped."""
    return "".join(char.encode("unicode_escape").decode() if has_control(char) else char for char in text)


def _quoted(value: Any) -> Any:
    """Quote a value that a template prints for the shell, unless it is quoted already."""
    return value if isinstance(value, Quoted) else shlex.quote(_safe(str(value), "template"))
