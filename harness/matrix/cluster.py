"""The profile of a cluster: what a job may request, and the checks of its file's values. Reads no file.

A profile may not set some flags of sbatch and srun, in any spelling of Slurm or as variables: one agent per node forks
the ranks, so nothing may start a second one, bind the agent, or hide cores or GPUs from it. The flags are those of
Slurm 22.05 to 25.05 (man sbatch, man srun).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from harness.core.secrets import NAMES, holds_secret, is_secret_name
from harness.core.setting import setting
from harness.matrix.problems import KeyPath, Problems
from harness.matrix.schema.sections import Name, PeakTflops

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

_REFUSED_BY_BOTH = {
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
REFUSED_FLAGS: Mapping[Command, Mapping[str, str]] = {
    "sbatch": {
        **_REFUSED_BY_BOTH,
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
        **_REFUSED_BY_BOTH,
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
_HARMLESS_FLAGS = {
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
_SHORT_FLAGS = {
    "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "G": "gpus", "m": "distribution", "O": "overcommit",
    "B": "extra-node-info", "w": "nodelist", "F": "nodefile", "x": "exclude", "r": "relative", "Z": "no-allocate",
    "a": "array", "J": "job-name", "o": "output", "e": "error", "W": "wait", "t": "time", "K": "kill-on-bad-exit",
    "p": "partition", "A": "account", "q": "qos", "C": "constraint", "Q": "quiet", "M": "clusters",
    "S": "core-spec", "H": "hold", "h": "help", "V": "version", "b": "begin", "d": "dependency",
}  # fmt: skip
# Variables of other names, from which srun or sbatch reads these flags.
_FLAG_VARIABLES = {
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
    """Return what is wrong with a flag of a profile, and why or what is allowed; None if it may be set."""
    spelled = _SPELLED.fullmatch(flag)
    if spelled:
        long, short, value = spelled.groups()
        full_name = _named(command, long) if long else _SHORT_FLAGS.get(short, "")
        if full_name in REFUSED_FLAGS[command] and not _harmless(full_name, value):
            return f"--{full_name} cannot be set here", REFUSED_FLAGS[command][full_name]
    if not _FLAG.fullmatch(flag) or _SECOND.search(flag):
        return "must be one flag with its value", "write --name or --name=value"
    return None


def problem_of_variable(name: str, value: str) -> tuple[str, str] | None:
    """Return what is wrong, as `problem_of_flag` does, with a variable of a job, from which srun reads a flag."""
    if name.endswith("_VISIBLE_DEVICES"):
        return f"{name} cannot be set here", _GPUS
    prefix, flag = _flag_of(name)
    if prefix not in ("SLURM", "SRUN") or flag not in REFUSED_FLAGS["srun"] or _harmless(flag, value):
        return None
    return f"srun reads --{flag} from {name}, which cannot be set here", REFUSED_FLAGS["srun"][flag]


def problems_of_line(line: str) -> list[tuple[str, str]]:
    """Return what is wrong, as `problem_of_flag` does, with the variables that a line of shell assigns."""
    answers = (problem_of_variable(name, value.strip("'\"")) for name, value in _ASSIGNED.findall(line))
    return [answer for answer in answers if answer]


def overriding(environment: Mapping[str, str], job_file: str) -> list[str]:
    """Return the variables of the shell that sbatch, or srun in the job, would read before what the text of the job
    file says.
    """
    names = []
    for name, value in environment.items():
        prefix, flag = _flag_of(name)
        free = flag in _DEFAULTS_OF_USERS and f"#SBATCH --{flag}=" not in job_file
        slurm = prefix in ("SLURM", "SRUN") and problem_of_variable(name, value)
        if slurm or (prefix == "SBATCH" and flag in REFUSED_FLAGS["sbatch"] and not free):
            names.append(name)
    return names


def _flag_of(variable: str) -> tuple[str, str]:
    prefix, _, rest = variable.partition("_")
    return prefix, _FLAG_VARIABLES.get(rest, rest.lower().replace("_", "-"))


def _named(command: Command, name: str) -> str:
    """Return the flag that Slurm takes a name for: it reads every unambiguous beginning (--part=x)."""
    refused = REFUSED_FLAGS[command]
    whole = name in refused or name in _WHOLE_NAMES
    return name if whole else next((full for full in refused if full.startswith(name)), name)


def _harmless(flag: str, value: str | None) -> bool:
    if flag == "export":
        return (value or "").partition(",")[0] == "ALL"
    return value is not None and set(value.lower().split(",")) <= _HARMLESS_FLAGS.get(flag, frozenset())


SECRET_HINT = "have the cluster provide it, e.g. setup: ['source ~/.harness_secrets'], a file that only you can read"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def has_control(text: str) -> bool:
    """Return whether a text could break out of its line in a job file."""
    return bool(_CONTROL.search(text))


def _one_line(value: str) -> str:
    if not value or has_control(value):
        raise ValueError("must be one line of text, without control characters")
    return value


def _matching(pattern: str, what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"must be {what}")
        return value

    return AfterValidator(check)


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Line = Annotated[str, AfterValidator(_one_line)]


def _within_memory(value: str) -> str:
    """Return the size; ValueError if it is too large. sbatch reads a number without a unit as MiB."""
    unit = value[-1] if value[-1:].isalpha() else "M"
    if int(value.rstrip("KMGT")) * 1024 ** "KMGT".index(unit) > MAX_MEMORY_KIB:
        raise ValueError("must be at most 1024T: no node has more memory")
    return value


MAX_MEMORY_KIB = 2**40
Memory = Annotated[
    str,
    BeforeValidator(_number_as_text),
    _matching(r"\d{1,12}[KMGT]?", "a size like 0, 500M or 64G"),
    AfterValidator(_within_memory),
]
Signal = Annotated[
    str, _matching(r"([RB]{1,2}:)?[A-Z][A-Z0-9+-]{0,14}(@\d{1,5})?", "[B:]SIGNAL[@seconds], e.g. USR1@120")
]
Gres = Annotated[str, _matching(r"[A-Za-z0-9_]+(:[A-Za-z0-9_.-]+)?", "a resource name like gpu or gpu:h100")]
EnvName = Annotated[str, _matching(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable")]
EnvValue = Annotated[str, BeforeValidator(_number_as_text)]


@dataclass(frozen=True, kw_only=True)
class Container:
    """The container that agents run in."""

    image: Line = setting(doc="`--container-image`, or the image of `apptainer exec`.")
    runtime: Literal["pyxis", "apptainer"] = setting(
        "pyxis", doc="Flags of `srun`, or `apptainer exec --nv` in front of the agent (`--nv` where nodes have GPUs)."
    )
    mounts: tuple[Line, ...] = setting(
        (), doc="`--container-mounts` or `--bind`, `SOURCE:TARGET` each; the run directory is added."
    )
    workdir: Line | None = setting(None, doc="`--container-workdir` or `--pwd`")


@dataclass(frozen=True, kw_only=True)
class ClusterProfile:
    """A profile file. Sizes are per node; a key that is None is not requested."""

    name: Name = setting("local", doc="Names the profile.", required=True)
    kind: Literal["local", "slurm"] = setting("local", doc="`local`: this machine; `slurm`: jobs.", required=True)
    partition: Line | None = setting(None, doc="`--partition`")
    account: Line | None = setting(None, doc="`--account`")
    qos: Line | None = setting(None, doc="`--qos`")
    reservation: Line | None = setting(None, doc="`--reservation`")
    constraint: Line | None = setting(None, doc="`--constraint`")
    exclude: tuple[Line, ...] = setting((), doc="`--exclude`: nodes that no job may use.")
    nodes: int = setting(1, doc="Maximum nodes per job; a cell that needs more is rejected.", ge=1, le=65_536)
    gpus_per_node: int = setting(
        0, doc="GPUs of a node; 0: a CPU cluster, which needs `ranks_per_node`.", ge=0, le=1_024
    )
    ranks_per_node: int = setting(
        1,
        doc="Ranks per node; on GPUs at most one per GPU.",
        shown_default="one per GPU",
        ge=1,
        le=65_536,
        optional=True,
    )
    gpu_flag: Literal["gpus-per-node", "gres", "none"] = setting("gpus-per-node", doc="How a job asks for GPUs.")
    gres: Gres = setting("gpu", doc="What `gpu_flag: gres` asks for, e.g. `gpu:h100`.")
    exclusive: bool = setting(
        False, doc="`--exclusive`: whole nodes, with all their GPUs. Without it a job gets one GPU per rank."
    )
    mem: Memory | None = setting(None, doc="`--mem`; `0` is all memory of a node.", values="size, at most 1024T")
    cpus_per_task: int | None = setting(
        None, doc="`--cpus-per-task`: cores of a node, for all its ranks together.", ge=1, le=65_536
    )
    time: int = setting(
        60, doc="Maximum minutes of one job; `launch.time_limit_min` of a matrix may ask for less.", ge=1, le=525_600
    )
    peak_tflops: PeakTflops = setting(
        default_factory=dict,
        doc="Peak of one GPU without sparsity, for [MFU](throughput.md#mfu): `{bf16: 989.5}`; if omitted, "
        "looked up by the GPU's name.",
        values="mapping of dtype to TFLOP/s",
    )
    signal: Signal | None = setting(
        None,
        doc="`--signal`, e.g. `USR1@120`. At USR1 or USR2 the agents start no further cell, running cells finish, and "
        "cells that have not started run in another job. `B:USR1@120` reaches srun first, which passes it on. Other "
        "signals have their usual effect.",
    )
    requeue: bool = setting(
        False, doc="`--requeue`, else `--no-requeue`: the harness restarts lost cells itself, on other nodes."
    )
    container: Container | None = setting(None, doc="Runs the agents in a container.")
    env: dict[EnvName, EnvValue | None] = setting(
        default_factory=dict,
        doc="Environment of the job. Values are literal: `$HOME` is not expanded. `null` removes a default.",
        values="mapping",
    )
    setup: tuple[Line, ...] = setting(
        (), doc="Shell lines of the batch script before `srun`, on the first node; what they export reaches all nodes."
    )
    sbatch_flags: tuple[Line, ...] = setting(
        (), doc="More flags, `--name=value` each: [which](clusters.md#flags-of-slurm)."
    )
    srun_flags: tuple[Line, ...] = setting((), doc="More flags of `srun`, `--name=value` each.")
    run_dir: Line | None = setting(
        None, doc="Folder of run directories when `--run-dir` is not given; every node must see it."
    )
    python: Line | None = setting(
        None, doc="Interpreter on the nodes; if omitted, the launcher's own, or `python3` in a container."
    )
    template: Line = setting(
        "default", doc="A name in `sbatch_templates`, or a path beside the profile that ends in `.j2`."
    )

    def gpus_of(self, ranks_per_node: int) -> int:
        """Return the GPUs per node that a job with `ranks_per_node` ranks on each node is allocated and charged for."""
        return self.gpus_per_node if self.exclusive else min(self.gpus_per_node, ranks_per_node)


LOCAL = ClusterProfile()


def load_profile(values: Any, *, file: str, lines: Mapping[KeyPath, int]) -> ClusterProfile:
    """Return the profile in `values`; InputError with every problem at once, each at its line of the file."""
    problems = Problems(file, lines)
    if values is None:
        problems.add((), "the profile is empty")
        problems.raise_any()
    # First, since other messages show values, and none may show a secret.
    _check_secrets(values, problems)
    problems.raise_any()
    if isinstance(values, Mapping) and "launcher" in values:
        message = (
            "was removed with the NeMo-Run launcher: job files are always the harness's own, which submitit submits"
        )
        problems.add(("launcher",), message, hint="delete this key")
        values = {name: value for name, value in values.items() if name != "launcher"}
    profile = problems.validate(ClusterProfile, values, ())
    if profile:
        given = {str(name).replace("-", "_") for name, value in values.items() if value is not None}
        _check_together(profile, given, {str(name).replace("-", "_") for name in values}, problems)
        if "ranks_per_node" not in given:
            profile = replace(profile, ranks_per_node=profile.gpus_per_node or 1)
    problems.raise_any()
    assert profile
    return profile


def _check_secrets(values: Any, problems: Problems) -> None:
    """Add a problem for every secret in a profile: others can read job files and run directories."""
    if not isinstance(values, Mapping):
        return
    env = values.get("env")
    for name, value in env.items() if isinstance(env, Mapping) else ():
        if isinstance(name, str) and is_secret_name(name):
            problems.add(("env", name), f"names a secret ({NAMES}), which must not be in a job file", hint=SECRET_HINT)
        elif isinstance(value, str) and (holds_secret(value) or holds_secret(f"{name}={value}")):
            problems.add(("env", name), "holds a secret, which must not be in a job file", hint=SECRET_HINT)
    for key in ("setup", "sbatch_flags", "srun_flags", "sbatch-flags", "srun-flags"):
        entries = values.get(key)
        for number, line in enumerate(entries if isinstance(entries, list) else ()):
            # NAME=$(command) and NAME=$OTHER are allowed: they read the secret on the cluster.
            if isinstance(line, str) and holds_secret(line):
                problems.add((key, number), "holds a secret, judging by its name or form", hint=SECRET_HINT)


def _check_together(profile: ClusterProfile, given: set[str], written: set[str], problems: Problems) -> None:
    """Check what involves several keys. `given`: keys with a value in the file; `written`: also those set to null."""
    for number, mount in enumerate(profile.container.mounts if profile.container else ()):
        if "," in mount or not 1 <= mount.count(":") <= 2:
            problems.add(("container", "mounts", number), "must be SOURCE:TARGET or SOURCE:TARGET:FLAGS", found=mount)
    if profile.kind == "local":
        for name in sorted(written - {"name", "kind", "run_dir"}):
            problems.add((name,), "has no meaning for kind: local", allowed="name, kind, run_dir")
        return
    ranks = profile.ranks_per_node if "ranks_per_node" in given else 0
    if not profile.gpus_per_node and not ranks:
        problems.add((), "sets neither gpus_per_node nor ranks_per_node", hint="a CPU cluster sets ranks_per_node")
    if profile.gpus_per_node and ranks > profile.gpus_per_node:
        sizes = f"{ranks} ranks on {profile.gpus_per_node} GPUs"
        problems.add(("ranks_per_node",), f"every rank needs its own GPU: {sizes}")
    for name, value in profile.env.items():
        if value is not None and has_control(value):
            problems.add(("env", name), "must be one line of text, without control characters")
    _check_flags(profile, problems)


def _check_flags(profile: ClusterProfile, problems: Problems) -> None:
    flags: dict[Command, tuple[str, ...]] = {"sbatch": profile.sbatch_flags, "srun": profile.srun_flags}
    for command, of_command in flags.items():
        for number, flag in enumerate(of_command):
            if wrong := problem_of_flag(command, flag):
                problems.add((f"{command}_flags", number), wrong[0], found=flag, hint=wrong[1])
            elif profile.cpus_per_task and flag.startswith("--cpus-per-g"):
                problems.add((f"{command}_flags", number), "excludes cpus_per_task, which is set too", found=flag)
    for name, value in profile.env.items():
        if value is not None and (wrong := problem_of_variable(name, value)):
            problems.add(("env", name), wrong[0], found=value, hint=wrong[1])
    for number, line in enumerate(profile.setup):
        for message, hint in problems_of_line(line):
            problems.add(("setup", number), message, found=line, hint=hint)


def nodes_for(world_size: int, cluster: ClusterProfile, nodes_per_cell: int = 1) -> int:
    """Return the nodes of a cell: as few as hold its ranks, or `nodes_per_cell` if that is more, but at most one per
    rank.
    """
    return max(-(-world_size // cluster.ranks_per_node), min(nodes_per_cell, world_size))
