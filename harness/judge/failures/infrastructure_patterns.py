"""Failure classes of what breaks outside the code under test: jobs, nodes, processes, network, storage."""

from __future__ import annotations

from harness.judge.failures.pattern_row import Domain, Pattern, Retry, Role

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
    # torch passes tensors between processes as open files: one that cannot be received has no message of its own.
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
