"""The table of failure classes, with the texts, states and exits by which they are recognised.

Roles and outlooks follow NVIDIA's resiliency extension (nvidia-resiliency-ext, attribution taxonomy): a root can start
a failure, a cascade only follows from one, on this rank or another. docs/failures.md explains the rows.
"""

from __future__ import annotations

import re

from harness.judge.failures.ending_patterns import (
    ABSENT_NAME,
    DEADLINE,
    FROZEN,
    HANG,
    HARNESS_DEFECT,
    NATIVE_CRASH,
    PYTHON,
    REPLACEMENT,
    SETUP,
    STALLED,
    UNKNOWN,
    UNREACHABLE,
)
from harness.judge.failures.infrastructure_patterns import (
    BOOT,
    CANCELLED,
    CONTAINER,
    DISK,
    GPU_HARDWARE,
    GPU_UNAVAILABLE,
    KILLED,
    NETWORK,
    NODE_FAILURE,
    OPEN_FILES,
    PREEMPTION,
    STORAGE,
    TIME_LIMIT,
)
from harness.judge.failures.pattern_row import Domain, Pattern, Retry, Role

# Import errors of an interpreter that is shutting down. The rows themselves exclude other tear-down noise: a plain
# "STEP ... CANCELLED" is srun ending the other tasks, Xid 45 is the driver's clean-up, and CUDA's advice is no cause.
TEAR_DOWN = re.compile(r"sys\.meta_path is None|Python is likely shutting down", re.I)
# "[rank1]: ", "[rank1]:[E321 02:07:08.4 File.cpp:607] ", "slurmstepd-node7: error: ", "srun: error: ", "[  12.3] "
PREFIX = re.compile(r"^(?:\s|\[rank\d+\]:|\[\s*[\d.]+\]|\[[EWIF]\d{3,4} [^\]]*\]|slurmstepd\S*:|srun:|error:)+")

GPU_MEMORY = Pattern(
    name="gpu-out-of-memory",
    title="GPU out of memory",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Make the cell smaller (layers, sequence length, micro-batch) or split it over more ranks.",
    exception=r"CUDA out of memory|CUDA error: out of memory|^(torch\.(cuda\.)?)?OutOfMemoryError:|"
    r"CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (\d+ )?'out of memory'",
    log=r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (\d+ )?'out of memory'",
)
HOST_MEMORY = Pattern(
    name="host-out-of-memory",
    title="host out of memory",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="Ask for more memory (mem), or run fewer ranks side by side on a node.",
    exception=r"^MemoryError|DefaultCPUAllocator: (can't|not enough)|Cannot allocate memory|"
    r"workers are out of shared memory",
    log=r"oom[-_ ]kill|Out of memory: Killed process|Memory cgroup out of memory|task \d+: Out Of Memory|"
    r"DefaultCPUAllocator: (can't|not enough)",
    states=("OUT_OF_MEMORY",),
)
NON_FINITE = Pattern(
    name="non-finite",
    title="NaN or Inf",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="A NaN or Inf appeared: inspect the first step and rank that have it; a retry would only hide it.",
    exception=r"found (NaN|Inf) in|Unexpected result (nan|inf)|returned nan values",
    log=r"found (NaN|Inf) in local|Unexpected result (nan|inf)",
)
GPU_MEMORY_ACCESS = Pattern(
    name="gpu-memory-access",
    title="illegal memory access or device-side assert",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Run just this cell with CUDA_LAUNCH_BLOCKING=1, so that the traceback shows the kernel at fault.",
    exception=r"illegal memory access|device-side assert triggered|misaligned address|unspecified launch failure|"
    r"illegal instruction was encountered",
    log=r"CUDA error: (an illegal memory access|device-side assert triggered|misaligned address|unspecified launch)|"
    r"\.cu:\d+: .*Assertion .* failed|NVRM: Xid \([^)]*\): (13|31),",
)
IMPORT = Pattern(
    name="import-or-version",
    title="import or version mismatch",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Compare the versions in the rank records with those the stack should have, and fix the stack.",
    exception=r"^(\w+\.)*(ModuleNotFoundError|ImportError):|undefined symbol|cannot open shared object file|"
    r"^AttributeError: (partially initialized )?module '[\w.]+' has no attribute",
    log=r"^(ModuleNotFoundError|ImportError):|undefined symbol: |"
    r"^AttributeError: (partially initialized )?module '[\w.]+' has no attribute",
)
CONFIGURATION = Pattern(
    name="configuration",
    title="configuration refused",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Change the cell's options as the message says, or add a rule that rejects the combination.",
    # Megatron's checks of its options, not of tensor sizes in a forward pass.
    exception=r"^(AssertionError|ValueError|RuntimeError): .*\b(world_?size|num\w*|layers|heads|parallel.size)\b.*"
    r"(is not divisible by|should be divisible by|must be (a multiple of|divisible by)|should be greater than 1 with)|"
    r"Cannot use sequence parallelism without|pipeline_dtype must be specified|must be non None to use|"
    r"^TypeError: \w*Config\.__init__\(\) got an unexpected keyword|^(argparse\.)?ArgumentError:",
    log=r"error: unrecognized arguments:|^(AssertionError|RuntimeError|ValueError): .*\b(world_?size|num\w*|layers)\b.*"
    r"(is not|should be) divisible by",
)
GLOO_DEVICE = Pattern(
    name="gloo-device",
    title="gloo cannot take a tensor on a GPU",
    domain=Domain.HARNESS,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Ranks share a GPU, so the harness chose gloo instead of NCCL, and has no stub for this call: run the cell "
    "with device: cpu or a GPU per rank, and please report it.",
    exception=r"ProcessGroupGloo::\w+: unsupported device type|(readv|writev).*: Bad address",
)
NCCL_TIMEOUT = Pattern(
    name="nccl-timeout",
    title="NCCL time-out",
    domain=Domain.UNKNOWN,
    role=Role.CASCADE,
    retry_advice=Retry.UNKNOWN,
    advice="The cause is unknown: find the rank that did not enter the collective, and read its log first.",
    exception=r"Watchdog caught collective operation timeout|ncclTimeout|NCCL.*timed? ?out",
    log=r"Watchdog caught collective operation timeout|WorkNCCL\(.*before timing out|detected by watchdog at work",
)
GLOO_TIMEOUT = Pattern(
    name="gloo-timeout",
    title="gloo or store time-out",
    domain=Domain.UNKNOWN,
    role=Role.CASCADE,
    retry_advice=Retry.UNKNOWN,
    advice="The cause is unknown: find the rank that did not enter the collective, and read its log first.",
    exception=r"Timed out waiting \d+ms for (recv|send) operation|failed to pass monitoredBarrier|"
    r"socket has timed out after|wait timeout after \d+ms|Application timeout caused pair closure|"
    r"\bSocket Timeout\b|Timeout waiting for key",
    log=r"Timed out waiting \d+ms for (recv|send) operation|failed to pass monitoredBarrier|"
    r"socket has timed out after|wait timeout after \d+ms|Application timeout caused pair closure|"
    r"DistStoreError: Socket Timeout|Timeout waiting for key",
)
LOST_PEER = Pattern(
    name="lost-peer",
    title="lost a peer",
    domain=Domain.UNKNOWN,
    role=Role.CASCADE,
    retry_advice=Retry.UNKNOWN,
    advice="Another rank ended first: read the log of the rank that recorded no exception.",
    # All of torch's types for errors of communication; but a call that NCCL refuses as wrong started here.
    exception=r"^(\w+\.)*Dist(Backend|Network|Store)?Error:(?!(?s:.*)ncclInvalid(Usage|Argument))|"
    r"connection (was )?(likely )?(closed|reset)|broken pipe|remote process exited|connection refused|"
    r"communicator was aborted|connectFullMesh failed",
    log=r"connection (was )?(closed by (remote )?peer|reset by peer)|: broken pipe|remote process exited|"
    r"ncclRemoteError|Got completion from peer \S+ with error|Connection was likely closed|communicator was aborted",
)

# The classes with texts or states: the first row that matches decides. Most specific first, cascades last, since a
# consequence may quote its root.
PATTERNS: tuple[Pattern, ...] = (
    GPU_MEMORY,
    HOST_MEMORY,
    NODE_FAILURE,
    PREEMPTION,
    TIME_LIMIT,
    CANCELLED,
    BOOT,
    CONTAINER,
    GPU_HARDWARE,
    GPU_UNAVAILABLE,
    NETWORK,
    NON_FINITE,
    GPU_MEMORY_ACCESS,
    KILLED,
    OPEN_FILES,
    IMPORT,
    DISK,
    STORAGE,
    CONFIGURATION,
    GLOO_DEVICE,
    NCCL_TIMEOUT,
    GLOO_TIMEOUT,
    LOST_PEER,
)

CLASSES: tuple[Pattern, ...] = (
    *PATTERNS,
    HANG,
    FROZEN,
    STALLED,
    UNREACHABLE,
    ABSENT_NAME,
    SETUP,
    HARNESS_DEFECT,
    REPLACEMENT,
    PYTHON,
    NATIVE_CRASH,
    DEADLINE,
    UNKNOWN,
)

__all__ = [
    "ABSENT_NAME",
    "BOOT",
    "CANCELLED",
    "CLASSES",
    "CONFIGURATION",
    "CONTAINER",
    "DEADLINE",
    "DISK",
    "FROZEN",
    "GLOO_DEVICE",
    "GLOO_TIMEOUT",
    "GPU_HARDWARE",
    "GPU_MEMORY",
    "GPU_MEMORY_ACCESS",
    "GPU_UNAVAILABLE",
    "HANG",
    "HARNESS_DEFECT",
    "HOST_MEMORY",
    "IMPORT",
    "KILLED",
    "LOST_PEER",
    "NATIVE_CRASH",
    "NCCL_TIMEOUT",
    "NETWORK",
    "NODE_FAILURE",
    "NON_FINITE",
    "OPEN_FILES",
    "PATTERNS",
    "PREEMPTION",
    "PREFIX",
    "PYTHON",
    "REPLACEMENT",
    "SETUP",
    "STALLED",
    "STORAGE",
    "TEAR_DOWN",
    "TIME_LIMIT",
    "UNKNOWN",
    "UNREACHABLE",
    "Pattern",
]
