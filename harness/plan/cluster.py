"""The profile of a cluster: what a job may ask for, and how its file is written. Reads values, not files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.plan.problems import KeyPath, Problems
from harness.plan.section import Count, Section
from harness.plan.sections import Name
from harness.plan.throughput_section import PeakTflops
from harness.words.secrets import NAMES, holds_secret, is_secret_name

SECRET_HINT = "have the cluster provide it, e.g. setup: ['source ~/.harness_secrets'], a file that only you can read"
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FLAG = re.compile(r"--[a-z][a-z0-9-]*(=.*)?")
# What the job file sets from the plan or from a key of the profile -> where the user sets it.
SBATCH_OWN = {
    **dict.fromkeys(("array", "job-name", "output", "error", "open-mode", "comment", "wrap"), "the harness sets it"),
    **dict.fromkeys(("ntasks", "ntasks-per-node", "parsable", "wait", "test-only"), "the harness sets it"),
    **dict.fromkeys(("gpus", "gpus-per-task", "gpus-per-node"), "write gpus_per_node and gpu_flag"),
    "gres": "write gpus_per_node, gpu_flag: gres and gres",
    "time": "write time, or launch.time_limit_min in the matrix",
    "no-requeue": "write requeue: false",
    "cpus-per-task": "write cpus_per_task",
} | {
    name: f"write {name}"
    for name in ("partition", "account", "qos", "reservation", "constraint", "nodes", "mem", "signal", "requeue")
    + ("exclusive", "exclude")
}
SRUN_OWN = dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "kill-on-bad-exit"), "the harness sets it") | {
    "container-image": "write container.image",
    "container-mounts": "write container.mounts",
    "container-workdir": "write container.workdir",
    "cpus-per-task": "write cpus_per_task",
}


def has_control(text: str) -> bool:
    """Whether a text could break out of a line of a job file."""
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
    """sbatch reads a number alone as MiB."""
    unit = value[-1] if value[-1:].isalpha() else "M"
    if int(value.rstrip("KMGT")) * 1024 ** "KMGT".index(unit) > MOST_MEMORY_KIB:
        raise ValueError("must be at most 1024T: no node has more memory")
    return value


MOST_MEMORY_KIB = 2**40
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
Path = Annotated[str, AfterValidator(_one_line)]


class ContainerSection(Section):
    """The container that agents run in."""

    image: Line = Field(description="Image, as srun --container-image or apptainer exec takes it.")
    runtime: Literal["pyxis", "apptainer"] = Field(default="pyxis", description="What starts the container.")
    mounts: list[Line] = Field(default_factory=list, description="SOURCE:TARGET; the run directory is added.")
    workdir: Line | None = Field(default=None, description="Working directory in the container.")


class ClusterFile(Section):
    """A profile file. `container` is checked as a section of its own."""

    name: Name = Field(description="Names the profile.")
    kind: Literal["local", "slurm"] = Field(description="local: this machine; slurm: jobs.")
    partition: Line | None = Field(default=None, description="sbatch --partition.")
    account: Line | None = Field(default=None, description="sbatch --account.")
    qos: Line | None = Field(default=None, description="sbatch --qos.")
    reservation: Line | None = Field(default=None, description="sbatch --reservation.")
    constraint: Line | None = Field(default=None, description="sbatch --constraint.")
    exclude: list[Line] = Field(default_factory=list, description="Nodes that no job may use.")
    nodes: Count = Field(default=1, le=65_536, description="Most nodes that one job may take.")
    gpus_per_node: Annotated[int, Field(ge=0, le=1_024)] = Field(
        default=0, description="GPUs of a node; 0: a CPU cluster."
    )
    ranks_per_node: Count | None = Field(
        default=None, le=65_536, description="Ranks a node takes; absent: one per GPU."
    )
    gpu_flag: Literal["gpus-per-node", "gres", "none"] = Field(
        default="gpus-per-node", description="How a job asks for GPUs."
    )
    gres: Gres = Field(default="gpu", description="Resource that gpu_flag: gres asks for, e.g. gpu:h100.")
    exclusive: bool = Field(default=False, description="Whole nodes, with all their GPUs.")
    mem: Memory | None = Field(default=None, description="sbatch --mem; 0: all memory of a node.")
    cpus_per_task: Count | None = Field(default=None, le=65_536, description="Cores of a node for its ranks together.")
    time: Count = Field(default=60, le=525_600, description="Most minutes that one job may take.")
    peak_tflops: PeakTflops = Field(
        default_factory=dict, description="Peak of one GPU by dtype, in TFLOP/s without sparsity; absent: by its name."
    )
    signal: Signal | None = Field(default=None, description="sbatch --signal.")
    requeue: bool = Field(default=False, description="Slurm may start a job again by itself.")
    container: dict[str, Any] | None = Field(default=None, description="The container that agents run in.")
    env: dict[EnvName, EnvValue | None] = Field(
        default_factory=dict, description="Environment of the job; null takes a default away."
    )
    setup: list[Line] = Field(default_factory=list, description="Shell lines before srun, on the first node.")
    sbatch_flags: list[Line] = Field(default_factory=list, description="More sbatch flags, --name=value each.")
    srun_flags: list[Line] = Field(default_factory=list, description="More srun flags, --name=value each.")
    run_dir: Path | None = Field(default=None, description="Folder of run directories that every node sees.")
    python: Path | None = Field(default=None, description="Interpreter on the nodes; absent: the launcher's own.")
    template: Path = Field(default="default", description="Name in sbatch_templates, or a path beside the profile.")


@dataclass(frozen=True, kw_only=True)
class Container:
    image: str
    runtime: str = "pyxis"  # pyxis | apptainer
    mounts: tuple[str, ...] = ()
    workdir: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClusterProfile:
    """A checked profile. Sizes count per node, `time` minutes per job; what is None is not asked for."""

    name: str = "local"
    kind: str = "local"  # local | slurm
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    exclude: tuple[str, ...] = ()
    nodes: int = 1
    gpus_per_node: int = 0
    ranks_per_node: int = 1
    gpu_flag: str = "gpus-per-node"
    gres: str = "gpu"
    exclusive: bool = False
    mem: str | None = None
    cpus_per_task: int | None = None
    time: int = 60
    peak_tflops: dict[str, float] = field(default_factory=dict)
    signal: str | None = None
    requeue: bool = False
    container: Container | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    sbatch_flags: tuple[str, ...] = ()
    srun_flags: tuple[str, ...] = ()
    run_dir: str | None = None
    python: str | None = None
    template: str = "default"

    def gpus_of(self, ranks_per_node: int) -> int:
        """GPUs per node that a job with so many ranks per node is given, and pays for."""
        return self.gpus_per_node if self.exclusive else min(self.gpus_per_node, ranks_per_node)


LOCAL = ClusterProfile()


def load_profile(values: Any, *, file: str, lines: Mapping[KeyPath, int]) -> ClusterProfile:
    """The profile in `values`; InputError with every problem at once, each at its line of the file."""
    problems = Problems(file, lines)
    if values is None:
        problems.add((), "the profile is empty")
        problems.raise_any()
    # Before anything prints a value: these messages must not show what they refuse.
    _check_secrets(values, problems)
    problems.raise_any()
    checked = problems.validate(ClusterFile, values, (), {})
    container = _container(values, problems)
    if checked:
        _check_together(checked, problems)
    problems.raise_any()
    assert checked
    plain = {name: _frozen(value) for name, value in checked.model_dump().items()}
    plain["ranks_per_node"] = checked.ranks_per_node or checked.gpus_per_node or 1
    return ClusterProfile(**plain | {"container": container})


def _container(values: Any, problems: Problems) -> Container | None:
    section = values.get("container") if isinstance(values, Mapping) else None
    if not isinstance(section, Mapping):
        return None
    checked = problems.validate(ContainerSection, section, ("container",), {})
    if checked is None:
        return None
    for number, mount in enumerate(checked.mounts):
        if "," in mount or not 1 <= mount.count(":") <= 2:
            problems.add(("container", "mounts", number), "must be SOURCE:TARGET or SOURCE:TARGET:FLAGS", found=mount)
    return Container(
        image=checked.image, runtime=checked.runtime, mounts=tuple(checked.mounts), workdir=checked.workdir
    )


def _check_secrets(values: Any, problems: Problems) -> None:
    """No secret may be written in a profile: job files and run directories are read by many."""
    if not isinstance(values, Mapping):
        return
    env = values.get("env")
    for name, value in env.items() if isinstance(env, Mapping) else ():
        if isinstance(name, str) and is_secret_name(name):
            problems.add(
                ("env", name), f"names a secret ({NAMES}), which must not stand in a job file", hint=SECRET_HINT
            )
        elif isinstance(value, str) and holds_secret(value):
            problems.add(("env", name), "holds a secret, which must not stand in a job file", hint=SECRET_HINT)
    for key in ("setup", "sbatch_flags", "srun_flags", "sbatch-flags", "srun-flags"):
        entries = values.get(key)
        for number, line in enumerate(entries if isinstance(entries, list) else ()):
            # NAME=$(command) and NAME=$OTHER read it on the cluster and may stay.
            if isinstance(line, str) and holds_secret(line):
                problems.add((key, number), "writes out a secret, by its name or by its looks", hint=SECRET_HINT)


def _check_together(profile: ClusterFile, problems: Problems) -> None:
    """What depends on more than one key."""
    if profile.kind == "local":
        for name in profile.model_fields_set - {"name", "kind", "run_dir"}:
            problems.add((name,), "has no meaning for kind: local", allowed="name, kind, run_dir")
        return
    if not profile.gpus_per_node and not profile.ranks_per_node:
        problems.add((), "says neither gpus_per_node nor ranks_per_node", hint="a CPU cluster sets ranks_per_node")
    if profile.gpus_per_node and (profile.ranks_per_node or 0) > profile.gpus_per_node:
        sizes = f"{profile.ranks_per_node} ranks on {profile.gpus_per_node} GPUs"
        problems.add(("ranks_per_node",), f"every rank needs a GPU of its own: {sizes}")
    for name, value in profile.env.items():
        if value is not None and has_control(value):
            problems.add(("env", name), "must be one line of text, without control characters")
    _check_flags("sbatch_flags", profile.sbatch_flags, SBATCH_OWN, problems)
    _check_flags("srun_flags", profile.srun_flags, SRUN_OWN, problems)


def _check_flags(key: str, flags: list[str], own: Mapping[str, str], problems: Problems) -> None:
    for number, flag in enumerate(flags):
        name = flag.partition("=")[0].lstrip("-")
        taken = next((full for full in own if full.startswith(name)), None)  # Slurm takes --part for --partition
        if not _FLAG.fullmatch(flag):
            problems.add((key, number), "must be one flag with its value", found=flag, allowed="--name or --name=value")
        elif taken:
            problems.add((key, number), f"--{taken} cannot stand here", found=flag, hint=own[taken])


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def nodes_for(world_size: int, cluster: ClusterProfile, nodes_per_cell: int = 1) -> int:
    """Nodes of a cell: as few as hold its ranks, or `nodes_per_cell` when that is more and the ranks go round."""
    return max(-(-world_size // cluster.ranks_per_node), min(nodes_per_cell, world_size))
