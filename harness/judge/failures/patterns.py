"""The table of failure classes, with the texts, states and exits by which they are recognised.

Roles and outlooks follow NVIDIA's resiliency extension (nvidia-resiliency-ext, attribution taxonomy): a root can start
a failure, a cascade only follows from one, on this rank or another. docs/failures.md explains the rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.outcomes import Domain, Retry, Role


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One failure class. All regular expressions are searched; an empty one never matches."""

    name: str
    title: str
    domain: Domain
    role: Role
    retry_advice: Retry
    advice: str  # what to do next, in one sentence
    exception: str = ""  # in "Type: message" of an exception that a rank recorded
    log: str = ""  # in one line of log text, without the prefixes of torch, srun and slurmstepd
    states: tuple[str, ...] = ()  # of the job, as sacct and squeue name them

    def in_exception(self, text: str) -> bool:
        """Return whether an exception, as "TYPE: MESSAGE", matches."""
        return bool(self.exception) and re.search(self.exception, text, re.I) is not None

    def in_log(self, line: str) -> bool:
        """Return whether a line of a log matches."""
        return bool(self.log) and re.search(self.log, line, re.I) is not None

    def in_state(self, state: str) -> bool:
        """Return whether a job's state matches; it may carry a comment ("CANCELLED by 0") or be cut ("OUT_OF_ME+")."""
        word = (state.split() or [""])[0]
        if word.endswith("+"):
            return len(word) > 4 and any(name.startswith(word[:-1]) for name in self.states)
        return word in self.states


HANG = Pattern(
    name="hang",
    title="hang in a collective",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Compare the stacks of the ranks that waited with that of the rank that never arrived.",
)


FROZEN = Pattern(
    name="frozen-process",
    title="frozen process",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="The process could not even write its stack: check whether it was stopped, swapped out, or blocked in the "
    "kernel (D state) on that node.",
)


STALLED = Pattern(
    name="collective-stall",
    title="collective that did not end",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="Every rank had entered the same collective, so none is late: check the network between the nodes.",
)


UNREACHABLE = Pattern(
    name="store-unreachable",
    title="ranks did not connect",
    domain=Domain.INFRASTRUCTURE,
    role=Role.CASCADE,
    retry_advice=Retry.OTHER_NODES,
    advice="Check whether rank 0 started, and whether the other nodes can reach its node's address and port.",
)


ABSENT_NAME = Pattern(
    name="absent-name",
    title="name that the stack lacks",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Use a commit or release that has the name. If upstream has renamed it for good, the harness must follow.",
)


SETUP = Pattern(
    name="setup-error",
    title="ranks could not be set up",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="It failed before any code under test ran: read the traceback, and check that node's device and network.",
)


HARNESS_DEFECT = Pattern(
    name="harness-defect",
    title="defect of the harness",
    domain=Domain.HARNESS,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="The code under test is not to blame: please report this with the log and the version of the harness.",
)


REPLACEMENT = Pattern(
    name="replacement-kernel",
    title="limit of a replacement kernel",
    domain=Domain.HARNESS,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="The harness's replacement of a GPU kernel refused a call that the real kernel may accept: run the cell on "
    "a GPU, and please report this with the log.",
)


PYTHON = Pattern(
    name="python-exception",
    title="Python exception",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Read the traceback of this rank.",
)


NATIVE_CRASH = Pattern(
    name="native-crash",
    title="native crash or exit",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Read the end of this rank's log: the interpreter dumps the stack there on a crash.",
)


DEADLINE = Pattern(
    name="deadline",
    title="cell deadline passed",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="Nothing proves a hang, so the cell may only be slow: raise deadline_s, or read the stack dumps.",
)


UNKNOWN = Pattern(
    name="unknown",
    title="unknown",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="The cause is unknown: read the logs of the attempt and of its job.",
)


NODE_FAILURE = Pattern(
    name="node-failure",
    title="node failure",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="Run the cell again on other nodes, and tell the administrators which node failed.",
    log=r"DUE TO NODE FAILURE|^Node failure on ",
    states=("NODE_FAIL",),
)


PREEMPTION = Pattern(
    name="preemption",
    title="preempted or requeued",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="Run the cell again; if this happens often, in a partition or QOS that is not preempted.",
    log=r"DUE TO PREEMPTION|DUE TO JOB REQUEUE",
    states=("PREEMPTED", "REQUEUED"),
)


TIME_LIMIT = Pattern(
    name="time-limit",
    title="job time limit",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Raise launch.time_limit_min or the time of the cluster profile, or lower launch.cells_per_allocation.",
    log=r"DUE TO TIME LIMIT",
    states=("TIMEOUT", "DEADLINE"),
)


CANCELLED = Pattern(
    name="cancelled",
    title="cancelled",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="The job was cancelled: if that was not intended, run its cells again with harness resume RUN --errors.",
    log=r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ \*\*\*",
    states=("CANCELLED",),
)


BOOT = Pattern(
    name="boot-failure",
    title="node boot or task launch failure",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="Run the cell again on other nodes, and tell the administrators which node failed to start it.",
    log=r"wrong with the boot of the nodes|are still not ready|^Task launch for \S+ failed on node|"
    r"^Application launch failed|^task \d+ launch failed",
    states=("BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"),
)


CONTAINER = Pattern(
    name="container-start",
    title="container did not start",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="Check the image and mounts of the cluster profile with a manual srun.",
    log=r"pyxis: (couldn't start container|failed to import docker image|container start failed)",
)


KILLED = Pattern(
    name="killed",
    title="killed from outside",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="Look for the kill in the node's kernel log (out of memory?) and in the job's accounting.",
    # A rank that is killed itself is recognised by its exit code.
    exception=r"DataLoader worker \(.*\) (is killed by signal: (Killed|Terminated)|exited unexpectedly)",
)


GPU_HARDWARE = Pattern(
    name="gpu-hardware",
    title="GPU hardware fault",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="Run the cell again on other nodes, and have this node's GPU checked.",
    exception=r"uncorrectable ECC|GPU has fallen off the bus|uncorrectable NVLink|peer GPU memory over nvlink",
    # Xid numbers that NVIDIA's catalogue assigns to memory, link, bus and firmware; the program can cause 13, 31, 43.
    log=r"uncorrectable ECC|fallen off the bus|uncorrectable NVLink|"
    r"NVRM: Xid \([^)]*\): (48|6[1-4]|74|79|9[2458]|119|12[0-2]|140|14[3-9]),",
)


GPU_UNAVAILABLE = Pattern(
    name="gpu-unavailable",
    title="GPU not available",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="Run the cell again on other nodes; check what holds this node's GPU, and that its fabric manager runs.",
    exception=r"busy or unavailable|system not yet initialized|no CUDA-capable device is detected|"
    r"CUDA driver initialization failed|failed to initialize NVML|nvmlInit_v2_\(\) INTERNAL ASSERT FAILED|"
    r"exclusive \(compute\) mode|No CUDA GPUs are available",
    log=r"CUDA error: .*(busy or unavailable|system not yet initialized)|no CUDA-capable device is detected|"
    r"No CUDA GPUs are available",
)


NETWORK = Pattern(
    name="network-error",
    title="network or transport error",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="Run the cell again on other nodes; NCCL's warnings in the logs name the interface and the peer.",
    exception=r"ncclSystemError|ncclInternalError|unhandled system error|No route to host|Network is unreachable|"
    r"Name or service not known|Temporary failure in name resolution",
    log=r"ncclSystemError|ncclInternalError|unhandled system error|NET/IB.*: (Got async event|ibv_\w+ failed)|"
    r"No route to host",
)


STORAGE = Pattern(
    name="storage-error",
    title="storage error",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="Check that the run directory's file system is mounted, writable and healthy on that node, then run harness "
    "resume RUN --errors.",
    exception=r"Stale file handle|Input/output error|Read-only file system|No locks available|Remote I/O error|"
    r"Transport endpoint is not connected",
    log=r"Stale file handle|Input/output error|Read-only file system",
)


OPEN_FILES = Pattern(
    name="too-many-open-files",
    title="too many open files",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Raise the limit of open files (ulimit -n 65536 in the shell of the launcher, or under setup of the cluster "
    "profile), or run fewer ranks side by side (launch.parallel_ranks).",
    # torch passes tensors between processes as open files: one that cannot be received has no message.
    exception=r"Too many open files|received 0 items of ancdata",
    log=r"Too many open files|received 0 items of ancdata",
)


DISK = Pattern(
    name="disk-full",
    title="disk full",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Free space or quota for the run directory and temporary files, then run harness resume RUN --errors.",
    exception=r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing",
    log=r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing",
)


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
