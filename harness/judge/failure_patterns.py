"""The table of failure classes: what each one is, and by what texts, states and exits it is recognised.

Roles and outlooks follow NVIDIA's resiliency extension (nvidia-resiliency-ext, attribution taxonomy): a root can start
a failure, a cascade only follows from one, on this rank or another. docs/failures.md explains the rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CODE, INFRASTRUCTURE, UNKNOWN_DOMAIN = "code", "infrastructure", "unknown"
ROOT, CASCADE = "root", "cascade"
NEVER, OTHER_NODES, UNKNOWN_OUTLOOK = "never", "other nodes", "unknown"


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One failure class. All regular expressions are searched; an empty one never matches."""

    name: str
    title: str
    domain: str  # code | infrastructure | unknown
    role: str  # root | cascade
    retry: str  # never | other nodes | unknown
    advice: str  # what to do next, in one sentence
    exception: str = ""  # in "Type: message" of an exception that a rank recorded
    log: str = ""  # in one line of log text, without the prefixes of torch, srun and slurmstepd
    states: tuple[str, ...] = ()  # of the job, as sacct and squeue name them

    def in_exception(self, text: str) -> bool:
        return bool(self.exception) and re.search(self.exception, text, re.I) is not None

    def in_log(self, line: str) -> bool:
        return bool(self.log) and re.search(self.log, line, re.I) is not None

    def in_state(self, state: str) -> bool:
        """`state` may carry a comment ("CANCELLED by 0") or be cut by sacct's column ("OUT_OF_ME+")."""
        word = (state.split() or [""])[0]
        if word.endswith("+"):
            return len(word) > 4 and any(name.startswith(word[:-1]) for name in self.states)
        return word in self.states


# Import errors of an interpreter that is ending. Other noise of a tear-down is kept out by the rows themselves: a plain
# "STEP ... CANCELLED" is srun ending the other tasks, Xid 45 is the driver's clean-up, and CUDA's advice is no cause.
TEAR_DOWN = re.compile(r"sys\.meta_path is None|Python is likely shutting down", re.I)
# "[rank1]: ", "[rank1]:[E321 02:07:08.4 File.cpp:607] ", "slurmstepd-node7: error: ", "srun: error: ", "[  12.3] "
PREFIX = re.compile(r"^(?:\s|\[rank\d+\]:|\[\s*[\d.]+\]|\[[EWIF]\d{3,4} [^\]]*\]|slurmstepd\S*:|srun:|error:)+")

GPU_MEMORY = Pattern(
    name="gpu-out-of-memory",
    title="GPU out of memory",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="Make the cell smaller (layers, sequence length, micro-batch) or split it over more ranks.",
    exception=r"CUDA out of memory|CUDA error: out of memory|^(torch\.(cuda\.)?)?OutOfMemoryError:|"
    r"CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (\d+ )?'out of memory'",
    log=r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure (\d+ )?'out of memory'",
)
HOST_MEMORY = Pattern(
    name="host-out-of-memory",
    title="host out of memory",
    domain=UNKNOWN_DOMAIN,
    role=ROOT,
    retry=UNKNOWN_OUTLOOK,
    advice="Ask for more memory (mem), or run fewer ranks side by side on a node.",
    exception=r"^MemoryError|DefaultCPUAllocator: (can't|not enough)|Cannot allocate memory",
    log=r"oom[-_ ]kill|Out of memory: Killed process|Memory cgroup out of memory|task \d+: Out Of Memory|"
    r"DefaultCPUAllocator: (can't|not enough)",
    states=("OUT_OF_MEMORY",),
)
NODE_FAILURE = Pattern(
    name="node-failure",
    title="node failure",
    domain=INFRASTRUCTURE,
    role=ROOT,
    retry=OTHER_NODES,
    advice="Run the cell again on other nodes, and tell the administrators which node failed.",
    log=r"DUE TO NODE FAILURE|^Node failure on ",
    states=("NODE_FAIL",),
)
PREEMPTION = Pattern(
    name="preemption",
    title="preempted or requeued",
    domain=INFRASTRUCTURE,
    role=ROOT,
    retry=OTHER_NODES,
    advice="Run the cell again, in a partition or QOS that is not preempted if this comes often.",
    log=r"DUE TO PREEMPTION|DUE TO JOB REQUEUE",
    states=("PREEMPTED", "REQUEUED"),
)
TIME_LIMIT = Pattern(
    name="time-limit",
    title="job time limit",
    domain=INFRASTRUCTURE,
    role=ROOT,
    retry=NEVER,
    advice="Raise launch.time_limit_min or the time of the cluster profile, or lower launch.cells_per_allocation.",
    log=r"DUE TO TIME LIMIT",
    states=("TIMEOUT", "DEADLINE"),
)
CANCELLED = Pattern(
    name="cancelled",
    title="cancelled",
    domain=INFRASTRUCTURE,
    role=ROOT,
    retry=NEVER,
    advice="Somebody cancelled the job: if that was not wanted, run its cells again with harness resume RUN --errors.",
    log=r"\*\*\* JOB \S+ ON \S+ CANCELLED AT \S+ \*\*\*",
    states=("CANCELLED",),
)
BOOT = Pattern(
    name="boot-failure",
    title="node boot or task launch failure",
    domain=INFRASTRUCTURE,
    role=ROOT,
    retry=OTHER_NODES,
    advice="Run the cell again on other nodes, and tell the administrators which node did not start it.",
    log=r"wrong with the boot of the nodes|are still not ready|^Task launch for \S+ failed on node|"
    r"^Application launch failed|^task \d+ launch failed",
    states=("BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"),
)
CONTAINER = Pattern(
    name="container-start",
    title="container did not start",
    domain=UNKNOWN_DOMAIN,
    role=ROOT,
    retry=UNKNOWN_OUTLOOK,
    advice="Check the image and mounts of the cluster profile with one srun by hand.",
    log=r"pyxis: (couldn't start container|failed to import docker image|container start failed)",
)
GPU_HARDWARE = Pattern(
    name="gpu-hardware",
    title="GPU hardware fault",
    domain=INFRASTRUCTURE,
    role=ROOT,
    retry=OTHER_NODES,
    advice="Run the cell again on other nodes, and have the GPU of this one checked.",
    exception=r"uncorrectable ECC|GPU has fallen off the bus|uncorrectable NVLink",
    # Xid numbers that NVIDIA's catalogue gives to memory, link, bus and firmware; 13, 31, 43 can be the program's.
    log=r"uncorrectable ECC|fallen off the bus|uncorrectable NVLink|"
    r"NVRM: Xid \([^)]*\): (48|6[1-4]|74|79|9[2458]|119|12[0-2]|140|14[3-9]),",
)
NON_FINITE = Pattern(
    name="non-finite",
    title="NaN or Inf",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="A number went wrong: look at the first step and rank that has it, and do not run again to be rid of it.",
    exception=r"found (NaN|Inf) in|Unexpected result (nan|inf)|returned nan values",
    log=r"found (NaN|Inf) in local|Unexpected result (nan|inf)",
)
GPU_MEMORY_ACCESS = Pattern(
    name="gpu-memory-access",
    title="illegal memory access or device-side assert",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="Run just this cell with CUDA_LAUNCH_BLOCKING=1, so that the traceback shows the kernel at fault.",
    exception=r"illegal memory access|device-side assert triggered|misaligned address|unspecified launch failure|"
    r"illegal instruction was encountered",
    log=r"CUDA error: (an illegal memory access|device-side assert triggered|misaligned address|unspecified launch)|"
    r"\.cu:\d+: .*Assertion .* failed|NVRM: Xid \([^)]*\): (13|31),",
)
IMPORT = Pattern(
    name="import-or-version",
    title="import or version mismatch",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="Compare the versions in the rank records with what the stack should hold, and mend the stack.",
    exception=r"^(\w+\.)*(ModuleNotFoundError|ImportError):|undefined symbol|cannot open shared object file|"
    r"^AttributeError: (partially initialized )?module '[\w.]+' has no attribute",
    log=r"^(ModuleNotFoundError|ImportError):|undefined symbol: |"
    r"^AttributeError: (partially initialized )?module '[\w.]+' has no attribute",
)
DISK = Pattern(
    name="disk-full",
    title="disk full",
    domain=INFRASTRUCTURE,
    role=ROOT,
    retry=NEVER,
    advice="Free space or quota where the run directory and the temporary files are, then harness resume RUN --errors.",
    exception=r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing",
    log=r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing",
)
CONFIGURATION = Pattern(
    name="configuration",
    title="configuration refused",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="Change the cell's options as the message says, or add a rule that rejects the combination.",
    # Megatron's checks of its options; the sizes of tensors in a forward pass are another matter.
    exception=r"^(AssertionError|ValueError|RuntimeError): .*\b(world_?size|num\w*|layers|heads|parallel.size)\b.*"
    r"(is not divisible by|should be divisible by|must be (a multiple of|divisible by)|should be greater than 1 with)|"
    r"Cannot use sequence parallelism without|pipeline_dtype must be specified|must be non None to use|"
    r"^TypeError: \w*Config\.__init__\(\) got an unexpected keyword|^(argparse\.)?ArgumentError:",
    log=r"error: unrecognized arguments:|^(AssertionError|RuntimeError|ValueError): .*\b(world_?size|num\w*|layers)\b.*"
    r"(is not|should be) divisible by",
)
NCCL_TIMEOUT = Pattern(
    name="nccl-timeout",
    title="NCCL time-out",
    domain=UNKNOWN_DOMAIN,
    role=CASCADE,
    retry=UNKNOWN_OUTLOOK,
    advice="No cause was found: see which rank did not enter the collective, and read its log first.",
    exception=r"Watchdog caught collective operation timeout|ncclTimeout|NCCL.*timed? ?out",
    log=r"Watchdog caught collective operation timeout|WorkNCCL\(.*before timing out|detected by watchdog at work",
)
GLOO_TIMEOUT = Pattern(
    name="gloo-timeout",
    title="gloo or store time-out",
    domain=UNKNOWN_DOMAIN,
    role=CASCADE,
    retry=UNKNOWN_OUTLOOK,
    advice="No cause was found: see which rank did not enter the collective, and read its log first.",
    exception=r"Timed out waiting \d+ms for (recv|send) operation|failed to pass monitoredBarrier|"
    r"socket has timed out after|wait timeout after \d+ms|Application timeout caused pair closure",
    log=r"Timed out waiting \d+ms for (recv|send) operation|failed to pass monitoredBarrier|"
    r"socket has timed out after|wait timeout after \d+ms|Application timeout caused pair closure",
)
LOST_PEER = Pattern(
    name="lost-peer",
    title="lost a peer",
    domain=UNKNOWN_DOMAIN,
    role=CASCADE,
    retry=UNKNOWN_OUTLOOK,
    advice="Another rank went away first: read the log of the rank that left no exception.",
    exception=r"connection (was )?(closed|reset)|broken pipe|remote process exited|connection refused",
    log=r"connection (was )?(closed by (remote )?peer|reset by peer)|: broken pipe|remote process exited|"
    r"ncclRemoteError|Got completion from peer \S+ with error",
)

# The classes with texts or states, most specific first: the first row that matches a text names it.
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
    NON_FINITE,
    GPU_MEMORY_ACCESS,
    NCCL_TIMEOUT,
    GLOO_TIMEOUT,
    LOST_PEER,
    IMPORT,
    DISK,
    CONFIGURATION,
)

# The classes that are told by how ranks ended, without a text of their own.
HANG = Pattern(
    name="hang",
    title="hang in a collective",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="Compare the stacks in the logs of the ranks that wait with that of the rank that came least far.",
)
PYTHON = Pattern(
    name="python-exception",
    title="Python exception",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="Read the traceback of this rank.",
)
NATIVE_CRASH = Pattern(
    name="native-crash",
    title="native crash or exit",
    domain=CODE,
    role=ROOT,
    retry=NEVER,
    advice="Read the end of this rank's log: the interpreter dumps the stack there on a crash.",
)
KILLED = Pattern(
    name="killed",
    title="killed from outside",
    domain=UNKNOWN_DOMAIN,
    role=ROOT,
    retry=UNKNOWN_OUTLOOK,
    advice="Look for the kill in the node's kernel log (out of memory?) and in the job's accounting.",
)
DEADLINE = Pattern(
    name="deadline",
    title="deadline of the cell",
    domain=UNKNOWN_DOMAIN,
    role=ROOT,
    retry=UNKNOWN_OUTLOOK,
    advice="No rank waited for another, so it may only be slow: raise deadline_s, or read the dumped stacks.",
)
UNKNOWN = Pattern(
    name="unknown",
    title="unknown",
    domain=UNKNOWN_DOMAIN,
    role=ROOT,
    retry=UNKNOWN_OUTLOOK,
    advice="Nothing says why: read the logs of the attempt and of its job.",
)

CLASSES: tuple[Pattern, ...] = (*PATTERNS, HANG, PYTHON, NATIVE_CRASH, KILLED, DEADLINE, UNKNOWN)
