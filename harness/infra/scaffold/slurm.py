"""Asks Slurm what a cluster profile needs: partitions, GPUs, accounts, containers; and this machine for its network."""

from __future__ import annotations

import getpass
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.infra import file_system
from harness.infra.command import Answer, ask
from harness.infra.doctor import infiniband_ports
from harness.infra.slurm.client import SlurmClient, minutes

_SYSTEM = Path("/")
_ROUTE_TO_ANYWHERE = "00000000"


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


def look(folder: Path, system: Path = _SYSTEM) -> Cluster | None:
    """The cluster; None where there is no Slurm, or its controller does not answer.

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
        name=_name(slurm.configuration()),
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
    """Groups of nodes: those with GPUs first, then the default partition's, then by number of nodes."""
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


def _name(answer: Answer) -> str:
    """The cluster's name, as a profile may have it."""
    found = re.search(r"(?m)^ClusterName\s*=\s*(\S+)", answer.text)
    return re.sub(r"[^A-Za-z0-9._-]", "-", found[1])[:64] if found else "slurm"


def _interface(table: Path) -> str:
    """The interface of the default route, from the kernel's table of routes."""
    rows = _lines(table)
    return next((row[0] for row in map(str.split, rows) if len(row) > 1 and row[1] == _ROUTE_TO_ANYWHERE), "")


def _lines(file: Path) -> Iterable[str]:
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return ()
