"""Environment variables that CUDA libraries read, as agents and ranks set and record them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

# Defaults of every agent; what the job or the user has set stays.
AGENT: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # NCCL's flight recorder: the collectives that a rank has enqueued, dumped when it hangs. Its old and its new name.
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "1000",
    "TORCH_FR_BUFFER_SIZE": "1000",
    # After a CUDA error NCCL's watchdog thread would abort the process before the main thread has recorded the error.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
# Defaults of ranks on GPUs whose cell is not timed: runs must repeat bit by bit where the hardware can. They take
# kernels and algorithms away (cuDNN on Hopper, NVLS), so a timed cell computes as a training would.
DETERMINISM: Mapping[str, str] = {
    "NCCL_ALGO": "Ring",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
WITHOUT = "PACKING_HARNESS_WITHOUT"  # names of DETERMINISM, comma separated, that a cluster profile takes away
RECORDED = ("NCCL_", "NVTE_", "CUBLAS_", "CUDNN_", "TORCH_NCCL_", "CUDA_DEVICE_", "GLOO_SOCKET_")


def determinism(environment: Mapping[str, str], *, timed: bool) -> dict[str, str]:
    """What a rank on a GPU adds to its environment before CUDA starts."""
    without = environment.get(WITHOUT, "").split(",")
    return {
        name: value
        for name, value in DETERMINISM.items()
        if not timed and name not in without and name not in environment
    }


def is_deterministic_te(environment: Mapping[str, str], *, timed: bool) -> bool:
    """Whether Transformer Engine may only take kernels that repeat bit by bit in a rank of this environment."""
    merged = {**environment, **determinism(environment, timed=timed)}
    return merged.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that belong into a rank's record: they choose kernels, algorithms and networks."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(RECORDED)}
