"""Upstream refuses each forbidden combination with a message that names the violated rule, and accepts the nearest
allowed one: otherwise a refusal would prove nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from harness.contracts.combinations import COMBINATIONS, GAPS_UNTIL_06, Combination, release_of
from harness.core.outcomes import Rejection
from harness.runtime.device import cpu_stubs
from harness.runtime.device.placement import choose_device
from harness.upstreams.node_lookup import Unavailable


@pytest.fixture(scope="session")
def unavailable() -> Iterator[Mapping[str, Unavailable]]:
    """Combinations whose validators cannot be called; one rank is set up for those that can."""
    found = {name: combination.unavailable() for name, combination in COMBINATIONS.items()}
    device = choose_device(0, 1)
    if device.kind == "cpu":
        cpu_stubs.install()  # after all imports: it replaces names in the modules that are loaded
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(device.backend, store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    yield found
    dist.destroy_process_group()


@pytest.fixture(params=COMBINATIONS)
def combination(request: pytest.FixtureRequest, unavailable: Mapping[str, Unavailable]) -> Combination:
    name: str = request.param
    why = unavailable[name]
    if isinstance(why, Rejection):
        pytest.skip(why.reason)
    if why is not None:
        raise LookupError(why.reason)
    if name in GAPS_UNTIL_06 and release_of("megatron.bridge") < (0, 6):
        request.applymarker(pytest.mark.xfail(reason=GAPS_UNTIL_06[name], raises=NotRefusedError, strict=True))
    return COMBINATIONS[name]


class NotRefusedError(AssertionError):
    """Upstream accepts a forbidden combination, or refuses it for another reason."""


def test_upstream_refuses(combination: Combination, tmp_path: Path) -> None:
    allowed = combination.refusal(False, tmp_path)
    assert allowed is None, f"{combination.validator} refuses even the nearest allowed combination: {allowed}"
    refusal = combination.refusal(True, tmp_path)
    if refusal is None:
        raise NotRefusedError(f"{combination.validator} accepts the forbidden combination")
    if not re.search(combination.says, refusal, re.IGNORECASE | re.DOTALL):
        raise NotRefusedError(f"{combination.validator} does not name the violated rule: {refusal}")
