"""The files of `harness init`: a first matrix, and the profile of the cluster where there is one.

Finds out what they depend on. Asks no questions, and imports neither torch nor Megatron.
"""

from __future__ import annotations

import getpass
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.core.cell.axis_values import HARNESS
from harness.core.packing.options import DEFAULT_OPTIONS
from harness.core.text import counted
from harness.infra import file_system
from harness.infra.command import Answer, ask
from harness.infra.templating import environment
from harness.inputs.working_tree import standing_in
from harness.launch.doctor import infiniband_ports
from harness.launch.local import cores, gpus_here
from harness.launch.slurm.client import SlurmClient, minutes
from harness.matrix.stacks.recipes import RECIPES, WORKING_TREE, WorkingTree
from harness.upstreams.megatron_lm.project import MEGATRON_LM
from harness.upstreams.table import PROJECTS

TEMPLATES = Path(__file__).parent / "templates"
_SYSTEM = Path("/")
_ROUTE_TO_ANYWHERE = "00000000"
NEWEST = [name for name in RECIPES if name.startswith("core-")][-1]
# Project -> the recipe of a release that a run of it is tested with where no checkout is.
RELEASES = {"megatron-lm": NEWEST, "megatron-bridge": "bridge-0.6.2", "skyrl": "skyrl-0.4.0"}
_LAYOUTS = ((1, 1, 1), (1, 1, 2), (2, 2, 1))  # tp, pp, cp
_LARGE_LAYOUTS = ((2, 4, 1), (2, 2, 2))  # with middle pipeline stages, and with all three
_FOR_LARGE = 8  # ranks
_FOR_ALL = 4  # ranks, without them
_PROFILE_NODES = 4
_PROFILE_MINUTES = 60
_PROFILE_RANKS = 8


@dataclass(frozen=True, kw_only=True)
class Machine:
    cores: int
    gpus: int
    megatron: str = ""  # version beside the launcher, if torch is there too; empty: cells need a stack
    tree: WorkingTree | None = None  # the checkout that the command was started in


def look_at_machine() -> Machine:
    return Machine(cores=cores(), gpus=gpus_here(), megatron=_megatron_version(), tree=standing_in())


def _megatron_version() -> str:
    try:
        version("torch")
        return version("megatron-core")
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A group of equal nodes of a partition."""

    name: str
    default: bool
    nodes: int
    cores: int  # of a node
    gres: str  # e.g. gpu:h100:8(S:0-1)
    minutes: int | None  # time limit of a job; None: none

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return sum(int(count) for _, count in re.findall(r"\bgpu:(?:([A-Za-z_][\w.-]*):)?(\d+)", self.gres))

    @property
    def text(self) -> str:
        """E.g. "batch: 16 nodes, 64 cores, 8 GPUs (h100), up to 240 min"."""
        kinds = [kind for kind, _ in re.findall(r"\bgpu:(?:([A-Za-z_][\w.-]*):)?(\d+)", self.gres) if kind]
        gpus = f", {self.gpus} GPUs{f' ({kinds[0]})' if kinds else ''}" if self.gpus else ""
        limit = f", up to {self.minutes} min" if self.minutes else ""
        return f"{self.name}: {self.nodes} nodes, {self.cores} cores{gpus}{limit}"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    name: str
    partitions: tuple[Partition, ...]  # the one to use first
    accounts: tuple[str, ...]
    pyxis: bool
    apptainer: bool
    infiniband: tuple[str, ...]  # active ports of this machine, e.g. "mlx5_0/1: ACTIVE, 400 Gb/sec (4X NDR)"
    interface: str  # network interface of this machine's default route; empty: unknown
    shared: bool  # whether the folder's file system can be seen by other machines
    filesystem: str


def look_for_cluster(folder: Path, system: Path = _SYSTEM) -> Cluster | None:
    """Return the cluster; None where there is no Slurm, or its controller does not answer.

    `folder`: where run directories would be. `system`: the root of the file system, for tests.
    """
    if shutil.which("sinfo") is None:
        return None
    slurm = SlurmClient()
    partitions = _partitions(slurm.nodes())
    if not partitions:
        return None
    kind = file_system.kind_of(folder, file_system.MOUNTS.read_text(encoding="utf-8", errors="replace")) or "unknown"
    ports = infiniband_ports(system / "sys/class/infiniband").items()
    accounts = slurm.accounts(getpass.getuser())
    return Cluster(
        name=_cluster_name(slurm.configuration()),
        partitions=partitions,
        accounts=() if accounts.problem else tuple(dict.fromkeys(accounts.text.split())),
        pyxis="--container-image" in slurm.srun_help().text,
        apptainer=ask(["apptainer", "--version"]).problem is None,
        infiniband=tuple(f"{port}: {state}" for port, state in ports if state.startswith("ACTIVE")),
        interface=_interface(system / "proc/net/route"),
        shared=kind in file_system.SHARED,
        filesystem=kind,
    )


def _partitions(answer: Answer) -> tuple[Partition, ...]:
    """Return groups of nodes: those with GPUs first, then the default partition's, then by number of nodes."""
    found = []
    for row in answer.text.splitlines() if not answer.problem else ():
        fields = row.split("|")
        if len(fields) == 5 and fields[2].isdigit():
            name, gres, nodes, cores, limit = fields
            number = re.match(r"\d+", cores)  # Slurm writes 64+ for nodes that differ
            found.append(
                Partition(
                    name=name.rstrip("*"),
                    default=name.endswith("*"),
                    nodes=int(nodes),
                    cores=int(number[0]) if number else 1,
                    gres=gres,
                    minutes=minutes(limit),
                )
            )
    return tuple(sorted(found, key=lambda one: (not one.gpus, not one.default, -one.nodes)))


def _cluster_name(answer: Answer) -> str:
    """Return the cluster's name, as a profile may have it."""
    found = re.search(r"(?m)^ClusterName\s*=\s*(\S+)", answer.text)
    return re.sub(r"[^A-Za-z0-9._-]", "-", found[1])[:64] if found else "slurm"


def _interface(table: Path) -> str:
    """Return the interface of the default route, from the kernel's table of routes."""
    rows = _lines_of(table)
    return next((row[0] for row in map(str.split, rows) if len(row) > 1 and row[1] == _ROUTE_TO_ANYWHERE), "")


def _lines_of(file: Path) -> Iterable[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ()


def matrix_text(machine: Machine, name: str, path: Path, cluster: bool) -> str:
    """Return the file's text. `cluster`: whether there is a profile, too, whose nodes may have other devices."""
    project = PROJECTS[machine.tree.project] if machine.tree else MEGATRON_LM
    stack, why = _software(machine)
    on_cpu = machine.gpus < _FOR_ALL and not cluster
    large = (machine.cores if on_cpu else machine.gpus) >= _FOR_LARGE
    values: dict[str, Any] = {
        "cores": counted(machine.cores, "core"),
        "gpus": f" and {counted(machine.gpus, 'GPU')}" if machine.gpus else "",
        "path": path,
        "name": name,
        "batch": 8,
        "documents": project.documents,
        "layouts": [*_LAYOUTS, *(_LARGE_LAYOUTS if large else ())],
        "more": [] if large else _LARGE_LAYOUTS,
        "packing": ["reference", project.data_path],
        "title": project.title,
        "options": project.options
        and {"reference": {name: getattr(DEFAULT_OPTIONS, name) for name in project.options}}
        | {project.data_path: project.options},
        "stack": stack,
        "why": why,
        "device": "cpu" if on_cpu and machine.gpus else "",
        "device_why": f"Each rank needs a GPU, and this machine has {machine.gpus}; `auto` uses GPUs.",
    }
    return environment(TEMPLATES, autoescape=False, finalize=str).get_template("matrix.yaml.j2").render(values)


def _software(machine: Machine) -> tuple[str, str]:
    """Return the stack, empty for the launcher's environment, and why it is this one."""
    if machine.tree:
        return (
            WORKING_TREE,
            f"The code under test: the checkout that you are in ({machine.tree.project}), with your changes.",
        )
    if machine.megatron:
        return "", f"The code under test: megatron-core {machine.megatron}, which is installed beside the harness."
    return NEWEST, f"The code under test: {RECIPES[NEWEST].doc}; its environment is made once."


@dataclass(frozen=True, kw_only=True)
class Software:
    """What the cells of a training run are tested with."""

    stack: str
    why: str
    trainer: str
    layers: tuple[Mapping[str, Any], ...] = ()  # of the stack, where it is no recipe


def software_for(machine: Machine, project: str, trainer: str) -> Software:
    """Return what a run of this project is tested with.

    Without a checkout of the project, a release; of Megatron-LM, whose wheel has no training script, in the harness's
    own loop. A project without a recipe is checked out.
    """
    if machine.tree and machine.tree.project == project:
        stack, why = _software(machine)
        return Software(stack=stack, why=why, trainer=trainer)
    advice = "In a checkout of the project, init names the checkout instead."
    if recipe := RELEASES.get(project):
        own = HARNESS if project == "megatron-lm" else trainer
        return Software(stack=recipe, why=f"The code under test: {RECIPES[recipe].doc}. {advice}", trainer=own)
    known = PROJECTS[project]
    checkout = {"checkout": known.url, "ref": "main", "package": known.name}
    why = f"The code under test: {known.title} from {known.url}; `ref` may be a commit. {advice}"
    return Software(stack=f"{known.name}-main", why=why, trainer=trainer, layers=(checkout, *known.runs_on))


def profile_text(cluster: Cluster, path: Path) -> str:
    """Return the file's text; `path`: as the user would name it."""
    first = cluster.partitions[0]
    values = {
        "cluster": cluster,
        "path": path,
        "first": first,
        "nodes": min(_PROFILE_NODES, first.nodes),
        "ranks": min(_PROFILE_RANKS, first.cores),
        "time": min(_PROFILE_MINUTES, first.minutes or _PROFILE_MINUTES),
        "runtimes": " and ".join(
            name for name, there in (("pyxis", cluster.pyxis), ("Apptainer", cluster.apptainer)) if there
        ),
    }
    templates = environment(TEMPLATES, autoescape=False, finalize=str)
    templates.filters["scalar"] = _scalar
    return templates.get_template("cluster.yaml.j2").render(values)


def _scalar(text: str) -> str:
    """Return the text as YAML; quoted where YAML might read it as a number or a reserved word, e.g. 1234 or null."""
    plain = re.fullmatch(r"[A-Za-z_][\w.-]*", text) and text.lower() not in ("null", "true", "false")
    return text if plain else json.dumps(text)
