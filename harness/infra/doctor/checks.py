"""The checks of `harness doctor`: pure decisions on the probed facts, each problem with its fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.infra import file_system
from harness.infra.command import Answer
from harness.infra.doctor.facts import FAIL, OK, WARN, Check
from harness.infra.doctor.gpu_checks import GpuFacts, container_files, gpu_checks, job_checks
from harness.infra.slurm.job_states import minutes
from harness.infra.stacks.interpreters import OLDEST_PYTHON
from harness.plan.jobs.cluster import ClusterProfile, Container

PACKAGES = ("torch", "megatron-core")
COMMANDS = ("sbatch", "srun")
LEAST_FREE_BYTES = 1 << 30
MOST_SKEW_S = 5.0  # timestamps, including those of files, decide which failure came first


@dataclass(frozen=True, kw_only=True)
class InterpreterFacts:
    """The Python that agents run in. The other fields are valid only if `problem` is None."""

    path: str
    problem: str | None = None
    python: tuple[int, int] = (0, 0)
    harness: bool = False  # it can import the package
    versions: Mapping[str, str | None] = field(default_factory=dict)  # by package metadata; None: not installed


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The folder of run directories, or its nearest existing parent."""

    path: Path
    exists: Path  # the folder itself, or the nearest one above it
    problem: str | None = None  # why no file can be created there
    filesystem: str = "unknown"
    free_bytes: int = 0
    skew_s: float = 0.0  # time of a file just created there minus this machine's


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All probed facts. Slurm's answers, one per command, are empty for a local profile."""

    interpreter: InterpreterFacts | None  # None: it is in a container
    gpus: Answer | None  # output of nvidia-smi -L; None: nvidia-smi is not on PATH
    folder: RunFolder
    commands: Mapping[str, Answer] = field(default_factory=dict)
    partitions: Answer = field(default_factory=Answer)  # lines NAME|GRES|TIME LIMIT
    accounts: Answer = field(default_factory=Answer)  # lines NAME
    accounting: Answer = field(default_factory=Answer)
    srun_help: Answer = field(default_factory=Answer)
    apptainer: Answer = field(default_factory=Answer)  # its version
    missing: tuple[str, ...] = ()  # paths that the profile names but that do not exist on this machine
    on_gpus: GpuFacts | None = None  # where GPUs are present or asked for


def checks(profile: ClusterProfile, facts: Facts) -> list[Check]:
    """Every check that the profile needs, in the order of a run."""
    found = list(_interpreter(facts.interpreter))
    if profile.kind == "local":
        found.append(_gpus(facts.gpus))
    else:
        found += [_command(name, facts.commands[name]) for name in COMMANDS]
        found += [_accounting(facts.accounting), *_partition(profile, facts.partitions)]
        if profile.account:
            found.append(_account(profile.account, facts.accounts))
        if profile.container:
            found += _container(profile.container, facts)
        found += job_checks(profile)
    if facts.on_gpus is not None:
        found += gpu_checks(profile, facts.on_gpus)
    return found + list(_folder(profile, facts.folder))


def _interpreter(one: InterpreterFacts | None) -> Iterator[Check]:
    if one is None:
        yield Check(WARN, "interpreter", "in the container, not checked", "run a cell of one step to check it")
        return
    if one.problem:
        yield Check(FAIL, "interpreter", f"{one.path}: {one.problem}", "set python in the profile, or run make setup")
        return
    version = ".".join(map(str, one.python))
    old = one.python < OLDEST_PYTHON
    needed = ".".join(map(str, OLDEST_PYTHON))
    yield Check(
        FAIL if old else OK,
        "interpreter",
        f"{one.path}, Python {version}",
        f"needs Python {needed} or newer" if old else "",
    )
    if not one.harness:
        yield Check(
            FAIL, "harness", f"{one.path} cannot import it", "install it there, or set PYTHONPATH in the profile's env"
        )
    for package in PACKAGES:
        found = one.versions.get(package)
        if found:
            yield Check(OK, package, found)
        else:
            how = "cells without a stack need it: name a stack, or install the extra `node` there"
            yield Check(WARN, package, f"not installed for {one.path}", how)


def _gpus(answer: Answer | None) -> Check:
    if answer is None:
        return Check(OK, "GPUs", "no nvidia-smi: ranks train on the CPU over gloo")
    names = answer.text.splitlines()
    if answer.problem or not names:
        return Check(FAIL, "GPUs", f"nvidia-smi: {answer.problem or 'lists no GPU'}", "repair the NVIDIA driver")
    return Check(OK, "GPUs", f"{len(names)}: {names[0].partition(' (UUID')[0]}")


def _command(name: str, answer: Answer) -> Check:
    if answer.problem:
        return Check(FAIL, name, answer.problem, "run on a login node, with Slurm's module loaded")
    return Check(OK, name, answer.text.strip())


def _accounting(answer: Answer) -> Check:
    if answer.problem:
        return Check(
            WARN, "accounting", f"sacct: {answer.problem}", "runs still work: squeue and heartbeats show how jobs end"
        )
    return Check(OK, "accounting", "sacct answers")


def _partition(profile: ClusterProfile, answer: Answer) -> Iterator[Check]:
    if answer.problem:
        yield Check(
            FAIL, "controller", f"sinfo: {answer.problem}", "check with `scontrol ping` whether slurmctld is up"
        )
        return
    yield Check(OK, "controller", "sinfo answers")
    rows = [tuple(row.split("|")) for row in answer.text.splitlines()]
    known = sorted({name for name, *_ in rows})
    if profile.partition:
        missing = [name for name in profile.partition.split(",") if name not in known]
        if missing:
            yield Check(
                FAIL, "partition", f"no such partition: {', '.join(missing)}", f"partitions: {', '.join(known)}"
            )
            return
        yield Check(OK, "partition", profile.partition)
    wanted = profile.partition.split(",") if profile.partition else known
    ours = [row for row in rows if row[0] in wanted]
    if profile.gpus_per_node:
        yield _gpus_of_nodes(profile, [gres for _, gres, *_ in ours])
    limits = [minutes(row[2]) for row in ours]
    bounded = [limit for limit in limits if limit is not None]
    if bounded and len(bounded) == len(limits) and profile.time > max(bounded):
        had = f"{profile.time} minutes requested, the partition allows {max(bounded)}"
        yield Check(FAIL, "time", had, "lower time in the profile, or choose another partition")


def _gpus_of_nodes(profile: ClusterProfile, listed: list[str]) -> Check:
    """Whether any node of the partition has the GPUs that a job asks for; Slurm writes gpu:8 or gpu:h100:8(S:0-1)."""
    nodes = [dict(_gpu_types(gres)) for gres in listed]
    if not any(nodes):
        fix = "set gpu_flag: none if Slurm does not manage the GPUs, or choose another partition"
        return Check(WARN, "GPUs of nodes", "Slurm lists none", fix)
    kind = profile.gres.partition(":")[2] if profile.gpu_flag == "gres" else ""
    most = max(sum(count for name, count in node.items() if kind in ("", name)) for node in nodes)
    if most < profile.gpus_per_node:
        requested = f"{profile.gpus_per_node} of {profile.gres if kind else 'gpu'} requested per node"
        had = f"{requested}, the partition has {_listed(listed)}"
        return Check(FAIL, "GPUs of nodes", had, "correct gpus_per_node or gres, or choose another partition")
    return Check(OK, "GPUs of nodes", _listed(listed))


def _gpu_types(gres: str) -> Iterator[tuple[str, int]]:
    """Type (empty where Slurm's configuration names none) and number of each kind of GPU on a node."""
    for kind, count in re.findall(r"\bgpu:(?:([A-Za-z_][\w.-]*):)?(\d+)", gres):
        yield kind, int(count)


def _listed(gres: list[str]) -> str:
    return ", ".join(sorted({re.sub(r"\(S:[^)]*\)", "", one) for one in gres if "gpu" in one}))


def _account(account: str, answer: Answer) -> Check:
    if answer.problem:
        return Check(WARN, "account", f"{account}: not checked, sacctmgr: {answer.problem}")
    known = sorted(set(answer.text.split()))
    if account.lower() not in known:  # Slurm keeps account names in lower case
        return Check(
            FAIL, "account", f"{account} is not one of your accounts", f"your accounts: {', '.join(known) or 'none'}"
        )
    return Check(OK, "account", account)


def _container(container: Container, facts: Facts) -> Iterator[Check]:
    answer = facts.srun_help if container.runtime == "pyxis" else facts.apptainer
    if container.runtime == "apptainer":
        if answer.problem:
            had, fix = f"apptainer: {answer.problem}", "nodes must have it on PATH: load its module in setup"
            yield Check(WARN, "container", had, fix)
        else:
            yield Check(OK, "container", answer.text.strip())
    elif answer.problem:
        yield Check(FAIL, "container", f"srun --help: {answer.problem}", "run on a login node")
    elif "--container-image" not in answer.text:
        fix = "have pyxis installed, set container.runtime: apptainer, or remove container from the profile"
        yield Check(FAIL, "container", "srun has no option --container-image", fix)
    else:
        yield Check(OK, "container", "srun has the option --container-image")
    yield from container_files(container, facts.missing)


def _folder(profile: ClusterProfile, folder: RunFolder) -> Iterator[Check]:
    if folder.problem:
        yield Check(FAIL, "run directory", f"{folder.exists}: {folder.problem}", "choose another with --run-dir")
        return
    created = "" if folder.exists == folder.path else ", will be created"
    yield Check(OK, "run directory", f"{folder.path} is writable{created}")
    if profile.kind == "slurm":
        shared = folder.filesystem in file_system.SHARED
        fix = "" if shared else "set run_dir to a shared folder, unless every node sees this one"
        yield Check(OK if shared else WARN, "file system", folder.filesystem, fix)
    enough = folder.free_bytes >= LEAST_FREE_BYTES
    fix = "" if enough else f"needs {LEAST_FREE_BYTES >> 30} GiB: delete old runs"
    yield Check(OK if enough else FAIL, "disk space", f"{folder.free_bytes / (1 << 30):.1f} GiB free", fix)
    apart = abs(folder.skew_s) > MOST_SKEW_S
    fix = "synchronise both clocks with NTP: timestamps decide which failure came first" if apart else ""
    yield Check(WARN if apart else OK, "clock", f"file times minus this machine's clock: {folder.skew_s:+.1f} s", fix)
