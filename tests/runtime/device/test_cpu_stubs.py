from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from harness.core.packing.arithmetic import zigzag
from harness.core.upstream import CODE, deciding
from harness.runtime.device.cpu_stubs import _thd_get_partitioned_indices
from tests import forked


def test_the_partition_stub_is_zigzag_per_document() -> None:
    bounds = torch.tensor([0, 4, 16], dtype=torch.int32)
    shares = [_thd_get_partitioned_indices(bounds, 16, 2, rank).tolist() for rank in range(2)]
    assert shares[0] == [0, 3, 4, 5, 6, 13, 14, 15]
    assert shares[1] == zigzag([0, 4, 16], 2, 1)


def test_the_partition_stub_refuses_offsets_that_do_not_end_at_the_row() -> None:
    with pytest.raises(ValueError, match="ends at 16, the row has 20"):
        _thd_get_partitioned_indices(torch.tensor([0, 16], dtype=torch.int32), 20, 2, 0)


@pytest.mark.parametrize("bounds", [[0, 8, 16, -1, -1], [0, 8, 4, 16], [-1, 16]])
def test_offsets_that_no_kernel_can_take_are_blamed_on_the_caller(bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="must ascend from 0") as raised:
        _thd_get_partitioned_indices(torch.tensor(bounds, dtype=torch.int32), 16, 2, 0)
    stub = [f"harness/runtime/device/cpu_stubs.py:{one.lineno} in {one.name}" for one in raised.traceback[1:]]
    assert deciding(["megatron/core/utils.py:7 in f", *stub])[0] == CODE


def test_installing_names_what_it_replaced() -> None:
    """In a separate process, since stubs cannot be removed."""
    program = """
import torch
from harness.runtime.device.cpu_stubs import install
names = install()
assert install() == names and len(names) == len(set(names)) > 10, names
assert torch.ones(1).cuda().device.type == "cpu"
assert torch.tensor([1], device=torch.cuda.current_device()).tolist() == [1]
"""
    forked.run(program)


def test_a_rank_on_cuda_refuses_to_run_with_stubs() -> None:
    """Stubs that `install` did not record count too: they are found by the file that defines them."""
    program = """
import torch
from harness.runtime.device import cpu_stubs
cpu_stubs.refuse()
assert cpu_stubs.installed() == []
cpu_stubs.install()
assert set(cpu_stubs._installed) <= set(cpu_stubs.installed())
cpu_stubs._installed.clear()
try:
    cpu_stubs.refuse()
except RuntimeError as error:
    assert "CPU stubs are installed in a rank that computes on CUDA" in str(error), error
    assert "torch.cuda.synchronize" in cpu_stubs.installed(), cpu_stubs.installed()
else:
    raise AssertionError("stubs were not detected")
"""
    forked.run(program)


@pytest.mark.slow
def test_torch_dynamo_distinguishes_the_stubs() -> None:
    """Dynamo keys its rules by function identity and refuses a function with two names and different rules."""
    program = """
from harness.runtime.device.cpu_stubs import install
install()
import torch._dynamo.trace_rules as rules
assert rules.get_torch_obj_rule_map()
"""
    environment = {name: value for name, value in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, env=environment)
