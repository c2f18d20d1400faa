from __future__ import annotations

import re
import subprocess
import sys

import pytest

from harness.node.device import _LEAST_LIMIT, _kibibytes, processor

PROGRAM = """
import resource, torch
from harness.node.device import limit_memory
torch.set_num_threads(1)
limit = limit_memory(10**6)
assert limit == {least}, limit
kept = torch.empty({least} // 8, dtype=torch.uint8)
try:
    torch.empty({least}, dtype=torch.uint8)
except RuntimeError as error:
    assert "can't allocate memory" in str(error), error
else:
    raise AssertionError("more than the limit was allocated")
"""


def test_a_rank_on_the_cpu_cannot_allocate_more_than_its_share() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM.format(least=_LEAST_LIMIT)], check=True)


def test_a_field_that_the_kernel_does_not_tell_is_an_error() -> None:
    assert _kibibytes("/proc/meminfo", "MemTotal") > 2**30
    with pytest.raises(RuntimeError, match="/proc/meminfo has no Nonsense"):
        _kibibytes("/proc/meminfo", "Nonsense")


def test_a_processor_is_its_model_and_how_many() -> None:
    assert re.fullmatch(r"\S.* x [1-9]\d*", processor())
