from __future__ import annotations

import numpy as np

from harness.upstreams.megatron_bridge.node_offline import Numbers, longest_first


def test_the_tokenizer_reads_numbers() -> None:
    assert Numbers().tokenize(" 17 4  9") == [17, 4, 9]
    assert Numbers().tokenize("") == []


def test_shuffles_are_pinned_to_thelongest_first_and_only_while_packing() -> None:
    kept = np.random.shuffle, np.random.permutation
    with longest_first():
        lengths = [3, 9, 1, 9]
        np.random.shuffle(lengths)
        assert lengths == [9, 9, 3, 1]
        order = np.random.permutation(3).tolist()
        assert [order.pop() for _ in range(3)] == [0, 1, 2]
    assert (np.random.shuffle, np.random.permutation) == kept
