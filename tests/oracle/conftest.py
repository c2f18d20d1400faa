"""Fixtures of the oracle's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import Tensor

from harness.oracle.layers import NOTED, Noted


@pytest.fixture
def noted() -> Iterator[dict[Noted, tuple[Tensor, ...]]]:
    """What modules receive and return while the test runs."""
    notes: dict[Noted, tuple[Tensor, ...]] = {}
    token = NOTED.set(notes)
    yield notes
    NOTED.reset(token)
