"""The checks of `harness doctor`: pure decisions on facts, each problem with its fix; then the probes of the facts."""

from __future__ import annotations

import getpass
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from harness.core.hardware import interface_matches
from harness.infra import file_system
from harness.infra.command import Answer, ask
from harness.infra.file_system import MOUNTS, kind_of
from harness.launch.slurm.client import SlurmClient, minutes
from harness.launch.stacks.interpreters import OLDEST_PYTHON
from harness.matrix.cluster import ClusterProfile, Container

PACKAGES = ("torch", "megatron-core")
COMMANDS = ("sbatch", "srun")
MIN_FREE_BYTES = 1 << 30
MIN_SHM_BYTES = 1 << 30  # NCCL ranks of one node exchange data through it; many containers get only 64 MiB
MAX_SKEW_S = 5.0  # timestamps, including those of files, decide which failure came first
PATIENCE_S = 120.0  # to import torch and Transformer Engine from a cold shared file system
_LIST_PACKAGES = """
import importlib.util, json, sys
from importlib.metadata import PackageNotFoundError, version
def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({"python": sys.version_info[:2], "harness": importlib.util.find_spec("harness") is not None,
                  "versions": {name: found(name) for name in sys.argv[1:]}}))
"""
_LIST_GPUS = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from importlib.metadata import PackageNotFoundError, version
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
said = {"cuda": torch.version.cuda, "available": count > 0, "kernels": torch.cuda.get_arch_list(),
        "devices": [torch.cuda.get_device_name(one) for one in range(count)],
        "capabilities": ["sm_%d%d" % torch.cuda.get_device_capability(one) for one in range(count)]}
if torch.version.cuda and torch.distributed.is_nccl_available():
    said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
try:
    said["engine"] = version("transformer-engine")
    import transformer_engine.pytorch
except PackageNotFoundError:
    pass
except BaseException as error:
    said["engine_problem"] = "%s: %s" % (type(error).__name__, (str(error).splitlines() or [""])[0])
print("\\n" + json.dumps(said))
"""
Ask = Callable[..., Answer]
Level = Literal["ok", "warn", "FAIL"]
OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "FAIL"


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    level: Level
    what: str
    detail: str
    fix: str = ""


def check_line(check: Check) -> str:
    """Return a check as one line of the terminal: level, subject, detail and what to do."""
    return f"{check.level:<4}  {check.what:<16}  {check.detail}" + (f"  ({check.fix})" if check.fix else "")


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
class TorchFacts:
    """Facts about torch and Transformer Engine, imported in the profile's interpreter."""

    cuda: str | None  # CUDA release that torch was built with; None: a CPU build
    available: bool = False  # torch.cuda.is_available()
    devices: tuple[str, ...] = ()  # names
    capabilities: tuple[str, ...] = ()  # of the devices, like sm_90
    kernels: tuple[str, ...] = ()  # architectures that torch was compiled for, like sm_90 or compute_90
    nccl: str | None = None
    engine: str = ""  # version of Transformer Engine; empty: it is not installed
    engine_problem: str = ""  # why it cannot be imported


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """Facts that are probed where GPUs are present or asked for."""

    driver: Answer  # output of nvidia-smi without options
    torch: TorchFacts | Answer | None  # Answer: why there are no facts; None: torch is in a container
    interfaces: tuple[str, ...] = ()  # names of network interfaces
    infiniband: dict[str, str] = field(default_factory=dict)  # device and port, like mlx5_0/1 -> state and rate
    shm_bytes: int = 0  # size of /dev/shm
    memlock_bytes: int | None = None  # limit of locked memory per process; None: unlimited


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
    """Return every check that the profile needs, in the order of a run."""
    decided = list(_interpreter_checks(facts.interpreter))
    if profile.kind == "local":
        decided.append(_gpu_check(facts.gpus))
    else:
        decided += [_command_check(name, facts.commands[name]) for name in COMMANDS]
        decided += [_accounting_check(facts.accounting), *_partition_checks(profile, facts.partitions)]
        if profile.account:
            decided.append(_account_check(profile.account, facts.accounts))
        if profile.container:
            decided += _container_checks(profile.container, facts)
        decided += job_checks(profile)
    if facts.on_gpus is not None:
        decided += gpu_checks(profile, facts.on_gpus)
    return decided + list(_folder_checks(profile, facts.folder))


def _interpreter_checks(interpreter: InterpreterFacts | None) -> Iterator[Check]:
    if interpreter is None:
        yield Check(WARN, "interpreter", "in the container, not checked", "run a cell of one step to check it")
        return
    if interpreter.problem:
        yield Check(
            FAIL,
            "interpreter",
            f"{interpreter.path}: {interpreter.problem}",
            "set python in the profile, or run make setup",
        )
        return
    version = ".".join(map(str, interpreter.python))
    old = interpreter.python < OLDEST_PYTHON
    oldest = ".".join(map(str, OLDEST_PYTHON))
    yield Check(
        FAIL if old else OK,
        "interpreter",
        f"{interpreter.path}, Python {version}",
        f"needs Python {oldest} or newer" if old else "",
    )
    if not interpreter.harness:
        yield Check(
            FAIL,
            "harness",
            f"{interpreter.path} cannot import it",
            "install it there, or set PYTHONPATH in the profile's env",
        )
    for package in PACKAGES:
        installed = interpreter.versions.get(package)
        if installed:
            yield Check(OK, package, installed)
        else:
            how = "cells without a stack need it: name a stack, or install the extra `node` there"
            yield Check(WARN, package, f"not installed for {interpreter.path}", how)


def _gpu_check(answer: Answer | None) -> Check:
    if answer is None:
        return Check(OK, "GPUs", "no nvidia-smi: ranks train on the CPU over gloo")
    names = answer.text.splitlines()
    if answer.problem or not names:
        return Check(FAIL, "GPUs", f"nvidia-smi: {answer.problem or 'lists no GPU'}", "repair the NVIDIA driver")
    return Check(OK, "GPUs", f"{len(names)}: {names[0].partition(' (UUID')[0]}")


def _command_check(name: str, answer: Answer) -> Check:
    if answer.problem:
        return Check(FAIL, name, answer.problem, "run on a login node, with Slurm's module loaded")
    return Check(OK, name, answer.text.strip())


def _accounting_check(answer: Answer) -> Check:
    if answer.problem:
        return Check(
            WARN, "accounting", f"sacct: {answer.problem}", "runs still work: squeue and heartbeats show how jobs end"
        )
    return Check(OK, "accounting", "sacct answers")


def _partition_checks(profile: ClusterProfile, answer: Answer) -> Iterator[Check]:
    if answer.problem:
        yield Check(
            FAIL, "controller", f"sinfo: {answer.problem}", "check with `scontrol ping` whether slurmctld is up"
        )
        return
    yield Check(OK, "controller", "sinfo answers")
    rows = [tuple(row.split("|")) for row in answer.text.splitlines()]
    existing = sorted({name for name, *_ in rows})
    if profile.partition:
        missing = [name for name in profile.partition.split(",") if name not in existing]
        if missing:
            yield Check(
                FAIL, "partition", f"no such partition: {', '.join(missing)}", f"partitions: {', '.join(existing)}"
            )
            return
        yield Check(OK, "partition", profile.partition)
    requested = profile.partition.split(",") if profile.partition else existing
    requested_rows = [row for row in rows if row[0] in requested]
    if profile.gpus_per_node:
        yield _gpus_of_nodes(profile, [gres for _, gres, *_ in requested_rows])
    limits = [minutes(row[2]) for row in requested_rows]
    bounded = [limit for limit in limits if limit is not None]
    if bounded and len(bounded) == len(limits) and profile.time > max(bounded):
        had = f"{profile.time} minutes requested, the partition allows {max(bounded)}"
        yield Check(FAIL, "time", had, "lower time in the profile, or choose another partition")


def _gpus_of_nodes(profile: ClusterProfile, listed: list[str]) -> Check:
    """Return whether any node of the partition has the GPUs that a job asks for.

    Slurm writes gpu:8 or gpu:h100:8(S:0-1).
    """
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
    """Yield the type (empty where Slurm's configuration names none) and number of each kind of GPU on a node."""
    for kind, count in re.findall(r"\bgpu:(?:([A-Za-z_][\w.-]*):)?(\d+)", gres):
        yield kind, int(count)


def _listed(gres: list[str]) -> str:
    return ", ".join(sorted({re.sub(r"\(S:[^)]*\)", "", gpu) for gpu in gres if "gpu" in gpu}))


def _account_check(account: str, answer: Answer) -> Check:
    if answer.problem:
        return Check(WARN, "account", f"{account}: not checked, sacctmgr: {answer.problem}")
    existing = sorted(set(answer.text.split()))
    if account.lower() not in existing:  # Slurm keeps account names in lower case
        return Check(
            FAIL, "account", f"{account} is not one of your accounts", f"your accounts: {', '.join(existing) or 'none'}"
        )
    return Check(OK, "account", account)


def _container_checks(container: Container, facts: Facts) -> Iterator[Check]:
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


def _folder_checks(profile: ClusterProfile, folder: RunFolder) -> Iterator[Check]:
    if folder.problem:
        yield Check(FAIL, "run directory", f"{folder.exists}: {folder.problem}", "choose another with --run-dir")
        return
    created = "" if folder.exists == folder.path else ", will be created"
    yield Check(OK, "run directory", f"{folder.path} is writable{created}")
    if profile.kind == "slurm":
        shared = folder.filesystem in file_system.SHARED
        fix = "" if shared else "set run_dir to a shared folder, unless every node sees this one"
        yield Check(OK if shared else WARN, "file system", folder.filesystem, fix)
    enough = folder.free_bytes >= MIN_FREE_BYTES
    fix = "" if enough else f"needs {MIN_FREE_BYTES >> 30} GiB: delete old runs"
    yield Check(OK if enough else FAIL, "disk space", f"{folder.free_bytes / (1 << 30):.1f} GiB free", fix)
    apart = abs(folder.skew_s) > MAX_SKEW_S
    fix = "synchronise both clocks with NTP: timestamps decide which failure came first" if apart else ""
    yield Check(WARN if apart else OK, "clock", f"file times minus this machine's clock: {folder.skew_s:+.1f} s", fix)


def gpu_checks(profile: ClusterProfile, facts: GpuFacts) -> Iterator[Check]:
    """Check torch, GPUs and network. On a cluster this is a login node: what only compute nodes need is a warning."""
    here = profile.kind == "local"
    if facts.torch is None:
        pass  # in a container: the check of the interpreter warns
    elif isinstance(facts.torch, Answer):
        yield Check(
            FAIL,
            "torch on GPUs",
            f"cannot be imported: {facts.torch.problem}",
            "install torch for CUDA in that interpreter",
        )
    else:
        yield from _torch_checks(facts.torch, facts.driver, here=here)
        yield _engine_check(facts.torch, here=here)
    if here:
        yield _shm_check(facts.shm_bytes)
    if profile.nodes > 1:
        yield from _network_checks(profile, facts)


def job_checks(profile: ClusterProfile) -> Iterator[Check]:
    """Check of profile settings that often go wrong on Slurm."""
    if not profile.exclusive and profile.cpus_per_task is None:
        had = "jobs share nodes and request no cores, so Slurm gives each job one core for all its ranks"
        yield Check(WARN, "cores", had, "set cpus_per_task, e.g. 8 per GPU of a job")
    plugin = next((flag for flag in profile.srun_flags if flag.startswith("--mpi=") and flag != "--mpi=none"), None)
    if plugin:
        fix = "write --mpi=none: agents start ranks themselves and use no MPI"
        yield Check(WARN, "MPI", f"srun {plugin} fails on nodes without that plugin", fix)
    image = profile.container.image if profile.container and profile.container.runtime == "pyxis" else ""
    if image and not image.startswith(("/", ".")):
        fix = f"import it once: enroot import -o IMAGE.sqsh docker://{image}, and set container.image to that file"
        yield Check(WARN, "image", f"{image} is imported from its registry by every job", fix)


def container_files(container: Container, missing: tuple[str, ...]) -> Iterator[Check]:
    """Check that name the image and the mount sources that do not exist on this machine."""
    if container.image in missing:
        yield Check(
            FAIL, "image", f"{container.image} does not exist", "every node must see it: correct container.image"
        )
    mounts = [mount for mount in container.mounts if mount.partition(":")[0] in missing]
    if mounts:
        yield Check(WARN, "mounts", f"not on this machine: {', '.join(mounts)}", "every source must exist on the nodes")


def _torch_checks(torch: TorchFacts, driver: Answer, *, here: bool) -> Iterator[Check]:
    if torch.cuda is None:
        yield Check(FAIL, "torch on GPUs", "torch is a CPU build", "install a CUDA build in that interpreter")
        return
    supported = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", driver.text)
    most = f"{supported[1]}.{supported[2]}" if supported else ""
    if most and int(most.partition(".")[0]) < int(torch.cuda.partition(".")[0]):
        fix = f"update the driver, or install torch for CUDA {most.partition('.')[0]}"
        yield Check(FAIL, "driver", f"supports CUDA up to {most}, torch is built for {torch.cuda}", fix)
    elif most:
        yield Check(OK, "driver", f"supports CUDA up to {most}, torch is built for {torch.cuda}")
    if not here:
        yield Check(
            OK, "torch on GPUs", f"built for CUDA {torch.cuda}, NCCL {torch.nccl}; GPUs are not checked on a login node"
        )
    elif not torch.available:
        fix = "check CUDA_VISIBLE_DEVICES; `python -c 'import torch; torch.cuda.init()'` prints the cause"
        yield Check(FAIL, "torch on GPUs", "torch finds no usable GPU", fix)
    else:
        yield _kernel_check(torch)


def _kernel_check(torch: TorchFacts) -> Check:
    """Check that torch has machine code for the GPU's major version, or PTX that the driver can compile for it."""
    unsupported = [
        capability
        for capability in torch.capabilities
        if not any(_kernel_runs(kernel, capability) for kernel in torch.kernels)
    ]
    if unsupported:
        had = f"torch has no kernels for {', '.join(unsupported)}, only for {', '.join(torch.kernels)}"
        return Check(FAIL, "torch on GPUs", had, "install a torch build for this GPU")
    named = f"{len(torch.devices)}: {torch.devices[0] if torch.devices else ''}"
    return Check(OK, "torch on GPUs", f"{named}, CUDA {torch.cuda}, NCCL {torch.nccl}")


def _kernel_runs(kernel: str, capability: str) -> bool:
    kind, _, version = kernel.rstrip("af").partition("_")
    own_version = capability.removeprefix("sm_")
    if not version.isdigit():
        return False
    return int(version) <= int(own_version) and (kind == "compute" or version[:-1] == own_version[:-1])


def _engine_check(torch: TorchFacts, *, here: bool) -> Check:
    name, engine = "TE", "Transformer Engine"
    if not torch.engine:
        return Check(WARN, name, f"no {engine}: attention runs on torch's varlen kernels", "install the extra `gpu`")
    if torch.engine_problem:
        fix = "reinstall it for this torch and CUDA" if here else "it may still import on nodes with a driver"
        return Check(
            FAIL if here else WARN, name, f"{engine} {torch.engine} cannot be imported: {torch.engine_problem}", fix
        )
    return Check(OK, name, f"{engine} {torch.engine}")


def _shm_check(size: int) -> Check:
    enough = size >= MIN_SHM_BYTES
    fix = "" if enough else "NCCL needs 1 GiB for the ranks of a node: start the container with more (--shm-size)"
    return Check(OK if enough else WARN, "/dev/shm", f"{size / (1 << 30):.1f} GiB", fix)


def _network_checks(profile: ClusterProfile, facts: GpuFacts) -> Iterator[Check]:
    """Check the interfaces that NCCL would use between nodes, as if the nodes had those of this machine."""
    requested = profile.env.get("NCCL_SOCKET_IFNAME") or ""
    if requested and not requested.startswith("^"):
        if any(interface_matches(interface, requested) for interface in facts.interfaces):
            yield Check(OK, "NCCL sockets", f"NCCL_SOCKET_IFNAME={requested}")
        else:
            had = f"no {requested} on this machine, which has {', '.join(facts.interfaces)}"
            yield Check(WARN, "NCCL sockets", had, "correct NCCL_SOCKET_IFNAME in env, unless the nodes have it")
    active = [f"{port} {state}" for port, state in facts.infiniband.items() if "ACTIVE" in state]
    if active:
        yield Check(OK, "InfiniBand", "; ".join(active))
        if facts.memlock_bytes is not None:
            had = f"processes may lock {facts.memlock_bytes >> 10} KiB"
            yield Check(
                WARN, "locked memory", had, "InfiniBand needs `ulimit -l unlimited`, also in the limits of slurmd"
            )
    elif profile.env.get("NCCL_IB_DISABLE") != "1":
        had = f"no active port on this machine ({', '.join(facts.infiniband) or 'no device'})"
        yield Check(WARN, "InfiniBand", had, "if the nodes have none either, NCCL uses sockets, which are slow")


def probe(profile: ClusterProfile, folder: Path) -> Facts:
    """Collect the facts that the checks of this profile need. Creates no folder; its one temporary file is removed."""
    python = None if profile.container else profile.python or sys.executable
    interpreter = None if python is None else probe_interpreter(python, profile.env)
    gpus = ask(["nvidia-smi", "-L"]) if shutil.which("nvidia-smi") else None
    facts = Facts(interpreter=interpreter, gpus=gpus, folder=probe_folder(folder))
    if profile.gpus_per_node or (gpus is not None and profile.kind == "local"):
        facts = replace(facts, on_gpus=probe_gpus(python, environment_with(profile.env), ask))
    if profile.kind == "local":
        return facts
    slurm = SlurmClient()
    return replace(
        facts,
        commands={name: slurm.version(name) for name in COMMANDS},
        partitions=slurm.partitions(),
        accounts=slurm.accounts(getpass.getuser()),
        accounting=slurm.accounting(),
        srun_help=slurm.srun_help(),
        apptainer=ask(["apptainer", "--version"]),
        missing=tuple(path for path in named_paths(profile) if not Path(path).exists()),
    )


def named_paths(profile: ClusterProfile) -> list[str]:
    """Return the paths that the profile's container needs: its image, where that is a path, and the sources of
    mounts.
    """
    if profile.container is None:
        return []
    sources = [mount.partition(":")[0] for mount in profile.container.mounts]
    return [path for path in (profile.container.image, *sources) if path.startswith("/")]


def environment_with(env: Mapping[str, str | None]) -> dict[str, str]:
    """Return this machine's environment, overridden by a profile's variables."""
    return {**os.environ, **{name: value for name, value in env.items() if value is not None}}


def probe_interpreter(python: str, env: Mapping[str, str | None]) -> InterpreterFacts:
    """Run an interpreter as a job would, with the profile's environment; reads package metadata, imports nothing."""
    answer = ask([python, "-c", _LIST_PACKAGES, *PACKAGES], environment_with(env))
    if answer.problem:
        return InterpreterFacts(path=python, problem=answer.problem)
    try:
        facts = json.loads(answer.text)
    except ValueError:
        return InterpreterFacts(path=python, problem="unexpected output: not a Python interpreter?")
    return InterpreterFacts(
        path=python, python=tuple(facts["python"]), harness=facts["harness"], versions=dict(facts["versions"])
    )


def probe_folder(path: Path) -> RunFolder:
    """Return facts about a folder or its nearest existing parent.

    Whether it is writable, its file system, space and clock.
    """
    exists = next(parent for parent in (path, *path.parents) if os.access(parent, os.F_OK))
    try:
        with tempfile.NamedTemporaryFile(dir=exists, prefix=".doctor-") as stream:
            before = time.time()
            stream.write(b"x")
            stream.flush()
            skew = os.fstat(stream.fileno()).st_mtime - before
    except OSError as error:
        return RunFolder(path=path, exists=exists, problem=str(error.strerror))
    free = shutil.disk_usage(exists).free
    kind = kind_of(exists, MOUNTS.read_text(encoding="utf-8", errors="replace")) or "unknown"
    return RunFolder(path=path, exists=exists, filesystem=kind, free_bytes=free, skew_s=skew)


def probe_gpus(python: str | None, env: Mapping[str, str], ask: Ask, system: Path = Path("/")) -> GpuFacts:
    """Return the facts of this machine; `python` None: it is in a container, where torch cannot be probed.

    `system`: the root of the file system, for tests.
    """
    torch = None if python is None else probe_torch(python, env, ask)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shm = system / "dev/shm"
    return GpuFacts(
        driver=ask(["nvidia-smi"]),
        torch=torch,
        interfaces=tuple(sorted(path.name for path in (system / "sys/class/net").glob("*") if path.name != "lo")),
        infiniband=infiniband_ports(system / "sys/class/infiniband"),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else 0,
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
    )


def probe_torch(python: str, env: Mapping[str, str], ask: Ask) -> TorchFacts | Answer:
    """Import torch in an interpreter and lists its CUDA devices; return the Answer if the command fails."""
    answer = ask([python, "-c", _LIST_GPUS], env, PATIENCE_S)
    if answer.problem:
        return answer
    try:
        output: dict[str, Any] = json.loads(answer.text.splitlines()[-1])
    except (ValueError, IndexError):
        return Answer(problem="unexpected output: not a Python interpreter?")
    facts: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in output.items()}
    return TorchFacts(**facts)


def infiniband_ports(folder: Path) -> dict[str, str]:
    """Return the state and rate of each device/port, e.g. "ACTIVE, 400 Gb/sec (4X NDR)" of mlx5_0/1; includes RoCE."""
    ports = {}
    for port in sorted(folder.glob("*/ports/*")):
        state, rate = (_read(port / name) for name in ("state", "rate"))
        ports[f"{port.parent.parent.name}/{port.name}"] = f"{state.rpartition(': ')[2]}, {rate}"
    return ports


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return "unknown"
