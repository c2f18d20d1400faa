"""Attached to a loop in the shape of megatron.bridge.training, it records what the harness's own loop does."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from harness.upstreams.megatron_bridge.node_attach import _outermost
from tests.upstreams.trainers.loop import record, steps

pytestmark = pytest.mark.train


def test_it_records_the_same_as_the_harness_does_of_its_own_loop() -> None:
    own, found = record("harness"), record("bridge")
    assert steps(found) == steps(own)
    for name in ("parameters", "activations", "layers", "packed_params"):
        assert found[name] == own[name], name
    assert [batch for batch in found["batches"] if batch["step"] == 0] == own["batches"]  # with the loss mask
    assert found["micro_batches"] == [step["micro_batches"] for step in own["steps"]]
    told = [(one["step"], one["consumed_samples"], one["learning_rate"]) for one in found["reported"]]
    assert told == [(0, 5, 0.001), (1, 5, 0.001)]
    assert [one["grad_norm"] for one in found["reported"]] == pytest.approx([s["grad_norm"] for s in own["steps"]])


def test_what_upstream_does_not_pass_on_is_not_in_the_record() -> None:
    found = record("bridge", "no_params")
    assert {batch["params"] for batch in found["batches"]} == {None}
    assert {layer["params"] for layer in found["layers"]} == {None}


def test_a_reported_norm_is_recorded_as_it_was_reported() -> None:
    found = record("bridge", "norm_doubled")
    told, seen = found["reported"][0]["grad_norm"], found["steps"][0]["grad_norm"]
    assert told == pytest.approx(2 * seen)


def test_the_entry_point_is_the_first_function_of_upstream_that_led_here() -> None:
    code = "def finetune(): return pretrain()\ndef pretrain(): return found()"
    upstream: dict[str, Any] = {
        "__name__": "megatron.bridge.training.finetune",
        "found": lambda: _outermost(sys._getframe()),
    }
    exec(code, upstream)
    assert upstream["finetune"]() == "megatron.bridge.training.finetune.finetune"
    assert upstream["pretrain"]() == "megatron.bridge.training.finetune.pretrain"
    assert _outermost(sys._getframe()) == ""


def test_what_is_counted_and_printed_is_recorded() -> None:
    found = record("bridge")
    assert found["counts_packed"] is True
    assert [(told["flops"], told["packed_tokens"], told["packed_squares"]) for told in found["reported"]] == [
        (70.0, 30, 90),
        (70.0, 31, 90),
    ]
    assert [told["printed"]["iteration"] for told in found["reported"]] == ["1/9", "2/9"]
