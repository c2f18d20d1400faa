"""Attached to a loop in the shape of megatron.training.training, it records what the harness's own loop does."""

from __future__ import annotations

import pytest

from tests.upstreams.trainers.loop import record, steps

pytestmark = pytest.mark.train


def test_it_records_the_same_as_the_harness_does_of_its_own_loop() -> None:
    own, found = record("harness"), record("megatron")
    assert steps(found) == steps(own)
    assert [seen["after"] for seen in found["evaluations"]] == [1, 2, 2]
    for seen, right in zip(found["evaluations"], own["evaluations"], strict=True):
        assert seen == right | {"reported": pytest.approx(seen["loss_sum"], rel=1e-6)}
    for name in ("parameters", "activations", "layers", "packed_params"):
        assert found[name] == own[name], name
    assert [batch for batch in found["batches"] if batch["step"] == 0] == own["batches"]
    assert {batch["step"] for batch in found["batches"]} == {0, 1}
    assert found["micro_batches"] == [step["micro_batches"] for step in own["steps"]]
    assert [(told["step"], told["consumed_samples"], told["learning_rate"]) for told in found["reported"]] == [
        (0, 5, 0.001),
        (1, 5, 0.001),
    ]
    for told, step in zip(found["reported"], own["steps"]):
        assert told["loss"] == pytest.approx(step["loss_sum"], rel=1e-6)


def test_a_micro_batch_too_many_is_counted() -> None:
    found = record("megatron", "extra_micro_batch")
    own = record("harness")
    assert found["micro_batches"] == [step["micro_batches"] + 1 for step in own["steps"]]
    assert [step["micro_batches"] for step in found["steps"]] == found["micro_batches"]


def test_the_mode_of_modules_is_recorded() -> None:
    right, left, wrong = (record("megatron", name) for name in ("right", "mode_left", "evaluation_trains"))
    assert [step["training"] for step in right["steps"]] == [True, True]
    assert [step["training"] for step in left["steps"]] == [True, False]
    assert [[one["training"] for one in found["evaluations"]] for found in (right, wrong)] == [[False] * 3, [True] * 3]


def test_a_step_without_an_update_is_recorded() -> None:
    found, own = (
        record("megatron", "no_update"),
        record("harness"),
    )
    assert steps(found)[0] == steps(own)[0]
    assert steps(found)[1] != steps(own)[1]  # the weights have not moved
    assert [step["step"] for step in found["steps"]] == [0, 1]
    updates = [parameter["update"] for parameter in found["parameters"]]
    assert updates and all(
        part["norm_sq"] == 0 for update in updates for part in update.values() if isinstance(part, dict)
    )


def test_what_is_counted_and_printed_is_recorded() -> None:
    found = record("megatron")
    assert found["counts_packed"] is True
    assert [(told["flops"], told["packed_tokens"], told["packed_squares"]) for told in found["reported"]] == [
        (70.0, 30.0, 90.0),
        (70.0, 31.0, 90.0),
    ]
    assert [told["printed"] for told in found["reported"]] == [
        {"iteration": f"{number}/9", "consumed samples": "5", "grad norm": "2.100"} for number in (1, 2)
    ]


def test_a_release_that_does_not_count_packed_tokens_is_recorded_as_such() -> None:
    found = record("megatron", "older")
    assert found["counts_packed"] is False
    names = ("packed_tokens", "packed_squares", "printed")
    assert {told[name] for told in found["reported"] for name in names} == {None}
    assert [told["flops"] for told in found["reported"]] == [70.0, 70.0]
