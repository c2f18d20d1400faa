from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.core.packing.sharing import decreasing, first_fit, in_turn, multiplied


def test_of_equally_long_documents_the_last_comes_first() -> None:
    assert decreasing([3, 5, 3, 5]) == [3, 1, 2, 0]


def test_each_document_goes_into_the_first_bin_with_room() -> None:
    assert first_fit([0, 1, 2, 3], [6, 5, 4, 5], 10) == [[0, 2], [1, 3]]


def test_a_document_beyond_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="a document of 11 tokens does not fit a micro-batch of 10 tokens"):
        first_fit([0], [11], 10)


def test_further_bins_take_last_documents_of_the_fullest_bin_until_it_has_one() -> None:
    bins = [[0, 1, 2], [3, 4, 5], [6]]
    assert multiplied(bins, 3) == bins
    assert multiplied(bins, 5) == [[0, 1, 2], [3], [6], [5], [4]]
    assert multiplied(bins, 7) == [[0], [3], [6], [5], [4], [2], [1]]


def test_more_bins_than_documents_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="2 documents cannot make 4 micro-batches, a multiple of dp = 4"):
        multiplied([[0, 1]], 4)


@given(st.lists(st.integers(1, 10), min_size=4, max_size=30), st.integers(1, 4))
def test_replicas_get_equally_many_bins_and_together_all_documents(sizes: list[int], replicas: int) -> None:
    bins = first_fit(decreasing(sizes), sizes, 10)
    assume(-(-len(bins) // replicas) * replicas <= len(sizes))
    shares = in_turn(multiplied(bins, replicas), replicas)
    assert len({len(bins) for bins in shares}) == 1
    assert sorted(document for bins in shares for one in bins for document in one) == [*range(len(sizes))]
