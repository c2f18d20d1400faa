"""The order of the file of packed rows. What upstream makes of it: tests/app/matrices/test_trainer_bridge.py."""

from __future__ import annotations

from harness.node.trainers.bridge.files import inverse, shuffled


def test_a_file_in_the_inverse_order_is_read_in_order() -> None:
    order = shuffled(18, seed=1234)
    assert sorted(order) == list(range(18)) != order
    rows = inverse(order)
    assert [rows[place] for place in order] == list(range(18))


def test_the_order_is_that_of_the_seed_of_the_data_set() -> None:
    assert shuffled(18, seed=1) != shuffled(18, seed=2)
