"""The flags of sbatch and srun that a profile may not set, and why: in every spelling of Slurm, and as variables.

One agent per node forks the ranks. So nothing may start a second one, bind the agent, or hide cores or GPUs from it.
The flags are those of Slurm 22.05 to 25.05 (man sbatch, man srun).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

Command = Literal["sbatch", "srun"]

_OWN = "the harness sets it"
_AGENTS = (
    "it can start a second agent on a node, while one forks all ranks of the node; write ranks_per_node for the number "
    "of ranks"
)
_CORES = (
    "it binds the agent of a node, and so all of its ranks, to some of the job's cores; leave it out: ranks share the "
    "cores that cpus_per_task asks for"
)
_GPUS = (
    "it hides GPUs from the agent of a node, which gives every rank its own; write gpus_per_node and gpu_flag for the "
    "GPUs of a job"
)
_STEP_CORES = "it gives the agent of a node fewer cores than the job has; write cpus_per_task for the cores of a job"
_STEP_NODES = "the agents run on all nodes of the job; write sbatch_flags or a key of the profile to choose nodes"
_STEP_TIME = "the agents run as long as the job; write time, or sbatch_flags for when a job may start"

_BOTH = {
    **dict.fromkeys(("ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-core", "ntasks-per-socket"), _AGENTS),
    **dict.fromkeys(("ntasks-per-gpu", "ntasks-per-tres", "overcommit", "distribution"), _AGENTS),
    "cpu-bind": _CORES,
    "mem-bind": "it binds the agent of a node, and so all of its ranks, to the memory of some cores; leave it out",
    "hint": f"{_CORES}; for one thread per core write sbatch_flags: [--threads-per-core=1]",
    **dict.fromkeys(("extra-node-info", "sockets-per-node", "cores-per-socket"), _CORES),
    "gres-flags": "it binds the agent of a node to the cores beside some GPUs; leave it out",
    "export": "agents need the environment that the job file sets; write env, or --export=ALL,NAME=value",
    **dict.fromkeys(("help", "usage", "version"), "it starts nothing"),
    **dict.fromkeys(("gpus-per-task", "gpus-per-socket", "gpu-bind", "tres-bind", "tres-per-task"), _GPUS),
    "cpus-per-task": "write cpus_per_task",
    "test-only": _OWN,
}
REFUSED: Mapping[Command, Mapping[str, str]] = {
    "sbatch": {
        **_BOTH,
        **dict.fromkeys(("array", "job-name", "output", "error", "open-mode", "wrap", "parsable", "wait"), _OWN),
        "quiet": "sbatch would not print the number of the job",
        **dict.fromkeys(("clusters", "cluster"), "jobs are followed on the cluster of the login node"),
        **dict.fromkeys(("gpus", "gpus-per-node"), "write gpus_per_node and gpu_flag"),
        "gres": "write gpus_per_node, gpu_flag: gres and gres",
        "time": "write time, or launch.time_limit_min in the matrix",
        "no-requeue": "write requeue: false",
        **{
            name: f"write {name}"
            for name in ("partition", "account", "qos", "reservation", "constraint", "nodes", "mem", "signal")
            + ("requeue", "exclusive", "exclude")
        },
    },
    "srun": {
        **_BOTH,
        **dict.fromkeys(("nodes", "kill-on-bad-exit", "multi-prog", "wait", "pty"), _OWN),
        **dict.fromkeys(("output", "error", "open-mode", "job-name"), _OWN),
        **dict.fromkeys(("time", "hold", "begin", "deadline", "dependency"), _STEP_TIME),
        **dict.fromkeys(("gpus", "gpus-per-node", "gres", "accel-bind"), _GPUS),
        **dict.fromkeys(("exact", "cpus-per-gpu", "threads-per-core", "core-spec", "thread-spec"), _STEP_CORES),
        "exclusive": f"{_STEP_CORES}, exclusive: true for whole nodes",
        **dict.fromkeys(
            ("nodelist", "nodefile", "exclude", "relative", "jobid", "het-group", "pack-group"), _STEP_NODES
        ),
        "no-allocate": _STEP_NODES,
        "container-image": "write container.image",
        "container-mounts": "write container.mounts",
        "container-workdir": "write container.workdir",
    },
}
_HARMLESS = {
    name: frozenset(("no", "none", "off", "q", "quiet", "v", "verbose"))
    for name in ("cpu-bind", "mem-bind", "gpu-bind")
} | {
    "gres-flags": frozenset(
        ("disable-binding", "allow-task-sharing", "multiple-tasks-per-sharing", "one-task-per-sharing")
    )
}
# Names of other flags that are also the beginning of a refused one, which Slurm therefore does not take for it.
_WHOLE_NAMES = frozenset(("container", "export-file", "extra", "mem", "network", "threads"))
# The letters of refused flags.
_SHORT = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "G": "gpus", "m": "distribution", "O": "overcommit",
    "B": "extra-node-info", "w": "nodelist", "F": "nodefile", "x": "exclude", "r": "relative", "Z": "no-allocate",
    "a": "array", "J": "job-name", "o": "output", "e": "error", "W": "wait", "t": "time", "K": "kill-on-bad-exit",
    "p": "partition", "A": "account", "q": "qos", "C": "constraint", "Q": "quiet", "M": "clusters",
    "S": "core-spec", "H": "hold", "h": "help", "V": "version", "b": "begin", "d": "dependency",
}  # fmt: skip
# Variables of other names, from which srun or sbatch reads these flags.
_VARIABLES = {
    "NPROCS": "ntasks", "DIST_PLANESIZE": "distribution", "NNODES": "nodes", "JOB_NUM_NODES": "nodes",
    "TIMELIMIT": "time", "ARRAY_INX": "array", "MEM_PER_NODE": "mem",
    "STEP_GRES": "gres", "EXPORT_ENV": "export", "JOB_ID": "jobid", "KILL_BAD_EXIT": "kill-on-bad-exit",
    "STDOUTMODE": "output", "STDERRMODE": "error",
}  # fmt: skip
# What a user may have set for all jobs; it counts where the profile names none.
_DEFAULTS_OF_USERS = frozenset(("partition", "account", "qos", "reservation", "constraint", "mem"))
_FLAG = re.compile(r"--[a-z][a-z0-9-]*(=.*)?")
_SPELLED = re.compile(r"(?:--([a-z][a-z0-9-]*)|-([A-Za-z]))(?:[= ]*(.*))?")
_ASSIGNED = re.compile(r"\b((?:SLURM|SRUN)_[A-Z_]+|[A-Z]+_VISIBLE_DEVICES)=([^\s;]*)")
_SECOND = re.compile(r"\s--?[A-Za-z]")


def problem_of_flag(command: Command, flag: str) -> tuple[str, str] | None:
    """What is wrong with a flag of a profile, and why or what is allowed; None if it may be set."""
    spelled = _SPELLED.fullmatch(flag)
    if spelled:
        long, short, value = spelled.groups()
        taken = _named(command, long) if long else _SHORT.get(short, "")
        if taken in REFUSED[command] and not _harmless(taken, value):
            return f"--{taken} cannot be set here", REFUSED[command][taken]
    if not _FLAG.fullmatch(flag) or _SECOND.search(flag):
        return "must be one flag with its value", "write --name or --name=value"
    return None


def problem_of_variable(name: str, value: str) -> tuple[str, str] | None:
    """The same for a variable of a job, from which srun reads a flag."""
    if name.endswith("_VISIBLE_DEVICES"):
        return f"{name} cannot be set here", _GPUS
    prefix, flag = _flag_of(name)
    if prefix not in ("SLURM", "SRUN") or flag not in REFUSED["srun"] or _harmless(flag, value):
        return None
    return f"srun reads --{flag} from {name}, which cannot be set here", REFUSED["srun"][flag]


def problems_of_line(line: str) -> list[tuple[str, str]]:
    """The same for the variables that a line of shell assigns."""
    found = (problem_of_variable(name, value.strip("'\"")) for name, value in _ASSIGNED.findall(line))
    return [one for one in found if one]


def overriding(environment: Mapping[str, str], job_file: str) -> list[str]:
    """Variables of the shell that sbatch, or srun in the job, would read before what the text of the job file says."""
    found = []
    for name, value in environment.items():
        prefix, flag = _flag_of(name)
        free = flag in _DEFAULTS_OF_USERS and f"#SBATCH --{flag}=" not in job_file
        slurm = prefix in ("SLURM", "SRUN") and problem_of_variable(name, value)
        if slurm or (prefix == "SBATCH" and flag in REFUSED["sbatch"] and not free):
            found.append(name)
    return found


def _flag_of(variable: str) -> tuple[str, str]:
    prefix, _, rest = variable.partition("_")
    return prefix, _VARIABLES.get(rest, rest.lower().replace("_", "-"))


def _named(command: Command, name: str) -> str:
    """The flag that Slurm takes a name for: it reads every unambiguous beginning (--part=x)."""
    own = REFUSED[command]
    whole = name in own or name in _WHOLE_NAMES
    return name if whole else next((full for full in own if full.startswith(name)), name)


def _harmless(flag: str, value: str | None) -> bool:
    if flag == "export":
        return (value or "").partition(",")[0] == "ALL"
    return value is not None and set(value.lower().split(",")) <= _HARMLESS.get(flag, frozenset())
