from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from harness.core.cell.layout import Coordinates
from harness.core.run.records import TensorSeen
from harness.probe.hooks.batches import log_probs_returned
from harness.probe.truth import MicroTruth, StepTruth
from harness.runtime.device.placement import Device
from harness.upstreams.node_base import Batch, RankContext
from tests.runtime.conftest import config


class Unpacks:
    """A data path on one rank that returns log-probabilities per document; `wrong` changes the stream first."""

    def __init__(self, wrong: Callable[[Tensor], Tensor] = lambda stream: stream) -> None:
        self.wrong = wrong

    def log_probs(self, micro: MicroTruth, batch: Batch, logits: Tensor) -> list[Tensor]:
        stream = self.wrong(logits.log_softmax(-1)[0].gather(1, micro.labels[:, None])[:, 0])
        return [stream[item.start : item.start + item.document.length - 1] for item in micro.plan.placed]


def returned(path: object, batch: Batch | None = None) -> TensorSeen | None:
    one = config("skyrl")
    context = RankContext(
        config=one, place=Coordinates(tp=0, pp=0, cp=0, dp=0), device=Device(kind="cpu", backend="gloo")
    )
    return log_probs_returned(path, StepTruth(one, 0, 0).micro_batches[0], context, batch or Batch())


def test_log_probs_returned_for_their_tokens_are_right() -> None:
    seen = returned(Unpacks())
    assert seen is not None
    assert seen.mismatches == 0


def test_a_log_prob_of_another_token_is_reported_with_the_slot_it_was_computed_for() -> None:
    seen = returned(Unpacks(lambda stream: stream.roll(1)))
    assert seen is not None
    assert seen.mismatches > 10
    assert seen.first is not None
    document, position, expected, found = seen.first
    assert (document, position, found) == (1, 0, expected - 1)


def test_a_log_prob_that_no_token_has_is_reported_without_a_slot() -> None:
    seen = returned(Unpacks(torch.zeros_like))
    assert seen is not None
    assert seen.first is not None
    assert seen.first[3] == -1


def test_a_log_prob_that_is_not_a_number_is_a_mismatch() -> None:
    seen = returned(Unpacks(lambda stream: stream * float("nan")))
    assert seen is not None
    assert seen.mismatches > 10


def test_log_probs_of_other_documents_than_the_plans_are_mismatches() -> None:
    class Fewer(Unpacks):
        def log_probs(self, *given: Any) -> list[Tensor]:
            return super().log_probs(*given)[:-1]

    slots = StepTruth(config("skyrl"), 0, 0).micro_batches[0].plan.slots
    shorter = Batch(params=SimpleNamespace(cu_seqlens_q_padded=torch.tensor([0, 4])))
    for seen in (returned(Fewer()), returned(Unpacks(), shorter)):
        assert seen is not None and seen.mismatches == slots


def test_a_data_path_that_returns_no_log_probs_has_no_comparison() -> None:
    assert returned(object()) is None
