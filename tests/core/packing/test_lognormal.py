from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.packing.documents import DocumentsConfig, documents_of_step
from harness.core.packing.lognormal import lognormal


@given(seed=st.integers(0, 2**32 - 1), mu=st.floats(-5, 12), sigma=st.floats(0, 4), first=st.integers(0, 700))
def test_numbers_are_those_of_numpys_legacy_generator(seed: int, mu: float, sigma: float, first: int) -> None:
    drawn = np.random.RandomState(seed).lognormal(mu, sigma, first + 3)[first:]
    assert [lognormal(seed, first + place, mu=mu, sigma=sigma) for place in range(3)] == pytest.approx(
        drawn.tolist(), rel=1e-14
    )


def test_numbers_do_not_depend_on_the_order_of_calls() -> None:
    there = [lognormal(7, index, mu=1.0, sigma=1.0) for index in range(2000)]
    assert [lognormal(7, index, mu=1.0, sigma=1.0) for index in reversed(range(2000))] == there[::-1]


def test_seeds_are_taken_modulo_the_range_of_numpys_generator() -> None:
    assert lognormal(2**32 + 5, 3, mu=1.0, sigma=1.0) == lognormal(5, 3, mu=1.0, sigma=1.0)


def test_a_number_too_large_for_a_float_is_still_one() -> None:
    assert lognormal(0, 0, mu=1000.0, sigma=0.0) > 1e300


def test_lengths_are_those_of_the_mock_sft_dataset() -> None:
    """The first MockSFTLowLevelDataset(...).sequence_lengths of Megatron-LM dev d48bd6be0a with its default seed, 0."""
    config = DocumentsConfig(mode="distribution", min_seq_len=100, max_seq_len=4096, mean_seq_len=2048)
    steps = [documents_of_step(config, seed=0, step=step, count=4, seq_length=8192) for step in range(3)]
    lengths = [document.original_length for step in steps for document in step]
    assert lengths == [4096, 1736, 3282, 4096, 4096, 381, 3180, 946, 998, 1756, 1310, 4096]
