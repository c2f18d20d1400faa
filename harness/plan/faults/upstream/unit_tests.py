"""Faults of class tests: upstream's own unit tests find another count than the matrix says."""

from __future__ import annotations

from functools import partial

from harness.core.cell.layout import Layout
from harness.core.data_paths.own import UpstreamTests
from harness.core.outcomes import Lane
from harness.plan.faults.spec import FaultSpec

# The shipped matrix that defines the stack, and its name there; it needs a clone beside the repository.
STACK = ("upstream_tests", "bridge06")

DEADLINE_S = 600.0  # such cells took 34 to 71 s on two busy cores

_spec = partial(
    FaultSpec,
    fault_class="tests",
    stack=STACK[1],
    data_path="upstream_tests",
    upstream_tests=UpstreamTests(
        name="seq_utils_06", file="tests/unit_tests/training/utils/test_packed_seq_utils.py", passed=19
    ),
    layout=Layout(),
    why="tests run in one process",
    lane=Lane.METADATA,
    checks=("upstream_tests",),
    where={"tests": "seq_utils_06"},
    deadline_s=DEADLINE_S,
)
UNIT_TESTS: tuple[FaultSpec, ...] = (
    _spec(
        name="offsets-without-padding-in-tested-code",
        summary="upstream's function for offsets with padding returns those without, and a unit test of it fails",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2",
    ),
    _spec(
        name="last-test-not-collected",
        summary="pytest leaves out a test, and all others pass",
        modelled_on="no known bug; a selection by name that no longer fits renamed tests",
    ),
)
