"""The checks of `harness doctor` on GPUs and the network between them: pure decisions on facts of gpu_probe.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.core.hardware.interfaces import matches
from harness.infra.command import Answer
from harness.infra.doctor.facts import FAIL, OK, WARN, Check
from harness.plan.jobs.cluster import ClusterProfile, Container

LEAST_SHM_BYTES = 1 << 30  # NCCL ranks of one node exchange data through it; many containers get only 64 MiB


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


def gpu_checks(profile: ClusterProfile, facts: GpuFacts) -> Iterator[Check]:
    """Checks torch, GPUs and network. On a cluster this is a login node: what only compute nodes need is a warning."""
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
        yield from _torch(facts.torch, facts.driver, here=here)
        yield _engine(facts.torch, here=here)
    if here:
        yield _shm(facts.shm_bytes)
    if profile.nodes > 1:
        yield from _network(profile, facts)


def job_checks(profile: ClusterProfile) -> Iterator[Check]:
    """Checks of profile settings that often go wrong on Slurm."""
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
    """Checks that name the image and the mount sources that do not exist on this machine."""
    if container.image in missing:
        yield Check(
            FAIL, "image", f"{container.image} does not exist", "every node must see it: correct container.image"
        )
    mounts = [mount for mount in container.mounts if mount.partition(":")[0] in missing]
    if mounts:
        yield Check(WARN, "mounts", f"not on this machine: {', '.join(mounts)}", "every source must exist on the nodes")


def _torch(torch: TorchFacts, driver: Answer, *, here: bool) -> Iterator[Check]:
    if torch.cuda is None:
        yield Check(FAIL, "torch on GPUs", "torch is a CPU build", "install a CUDA build in that interpreter")
        return
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", driver.text)
    most = f"{found[1]}.{found[2]}" if found else ""
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
        yield _kernels(torch)


def _kernels(torch: TorchFacts) -> Check:
    """Checks that torch has machine code for the GPU's major version, or PTX that the driver can compile for it."""
    unsupported = [one for one in torch.capabilities if not any(_runs(kernel, one) for kernel in torch.kernels)]
    if unsupported:
        had = f"torch has no kernels for {', '.join(unsupported)}, only for {', '.join(torch.kernels)}"
        return Check(FAIL, "torch on GPUs", had, "install a torch build for this GPU")
    named = f"{len(torch.devices)}: {torch.devices[0] if torch.devices else ''}"
    return Check(OK, "torch on GPUs", f"{named}, CUDA {torch.cuda}, NCCL {torch.nccl}")


def _runs(kernel: str, capability: str) -> bool:
    kind, _, version = kernel.rstrip("af").partition("_")
    ours = capability.removeprefix("sm_")
    if not version.isdigit():
        return False
    return int(version) <= int(ours) and (kind == "compute" or version[:-1] == ours[:-1])


def _engine(torch: TorchFacts, *, here: bool) -> Check:
    name, engine = "TE", "Transformer Engine"
    if not torch.engine:
        return Check(WARN, name, f"no {engine}: attention runs on torch's varlen kernels", "install the extra `gpu`")
    if torch.engine_problem:
        fix = "reinstall it for this torch and CUDA" if here else "it may still import on nodes with a driver"
        return Check(
            FAIL if here else WARN, name, f"{engine} {torch.engine} cannot be imported: {torch.engine_problem}", fix
        )
    return Check(OK, name, f"{engine} {torch.engine}")


def _shm(size: int) -> Check:
    enough = size >= LEAST_SHM_BYTES
    fix = "" if enough else "NCCL needs 1 GiB for the ranks of a node: start the container with more (--shm-size)"
    return Check(OK if enough else WARN, "/dev/shm", f"{size / (1 << 30):.1f} GiB", fix)


def _network(profile: ClusterProfile, facts: GpuFacts) -> Iterator[Check]:
    """Checks the interfaces that NCCL would use between nodes, as if the nodes had those of this machine."""
    requested = profile.env.get("NCCL_SOCKET_IFNAME") or ""
    if requested and not requested.startswith("^"):
        if any(matches(one, requested) for one in facts.interfaces):
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
