"""Fixtures of tests that need a GPU. They skip with the reason where torch can use none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

NO_GPU = "no GPU that torch can use: the CUDA kernels were not run"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test of this folder is marked, forgives the warnings of libraries there, and skips without a GPU."""
    here = [item for item in items if "tests/gpu/" in item.path.as_posix()]
    for item in here:
        item.add_marker(pytest.mark.gpu)
        item.add_marker(pytest.mark.filterwarnings("default"))
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.fixture(scope="module")
def world_of_one() -> Iterator[None]:
    """torch.distributed over NCCL and Megatron's groups for a single rank, taken down afterwards."""
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel

    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
