"""Environment variables of CUDA libraries that agents and ranks set and record. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# Defaults of every agent; a value set by the job or the user takes precedence.
AGENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Megatron makes tens of groups, and gloo would connect every two members of each, most of which never communicate.
    "TORCH_GLOO_LAZY_INIT": "1",
    # torch's flight recorder: the collectives that a rank has enqueued, dumped when it hangs. Old and new name.
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "1000",
    "TORCH_FR_BUFFER_SIZE": "1000",
    # Otherwise NCCL's watchdog thread aborts the process after a CUDA error, before the main thread has recorded it.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
# Defaults of ranks on GPUs whose cell is not timed: runs must repeat bit by bit where the hardware can. They rule out
# some kernels and algorithms (cuDNN on Hopper, NVLS), so a timed cell does without them, like a real training run.
DETERMINISM: Mapping[str, str] = {
    "NCCL_ALGO": "Ring",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
WITHOUT = "PACKING_HARNESS_WITHOUT"  # comma-separated names in DETERMINISM that a cluster profile excludes
RECORDED = ("NCCL_", "NVTE_", "CUBLAS_", "CUDNN_", "TORCH_NCCL_", "CUDA_DEVICE_", "GLOO_SOCKET_")


def determinism(environment: Mapping[str, str], *, timed: bool) -> dict[str, str]:
    """Variables that a rank on a GPU adds to its environment before CUDA starts."""
    without = environment.get(WITHOUT, "").split(",")
    return {
        name: value
        for name, value in DETERMINISM.items()
        if not timed and name not in without and name not in environment
    }


def is_deterministic_te(environment: Mapping[str, str], *, timed: bool) -> bool:
    """Whether Transformer Engine may use only deterministic kernels in a rank with this environment."""
    merged = {**environment, **determinism(environment, timed=timed)}
    return merged.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to put into a rank's record: they select kernels, algorithms and networks."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(RECORDED)}
