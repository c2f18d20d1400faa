from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.packing.arithmetic import PAD
from harness.core.packing.documents import mix
from harness.core.run.record_limits import MOST_TOKEN_LOSSES
from harness.core.run.records import DocumentLoss, StepSeen, TokenLoss
from harness.core.run.tensor_records import Fingerprint
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required.sums import contradiction
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import at, config_of, evidence_for

CANARIES = ("isolation", "determinism", "padding")


def after(change: Callable[[StepSeen], object], **layout: Any) -> str:
    """The contradiction after a change of step 0 on rank 0."""
    evidence = evidence_for(config_of("sft", **layout))
    change(evidence.records[0].steps[0])
    return contradiction(evidence)


@pytest.mark.parametrize(
    "make",
    [
        lambda: evidence_for(config_of("sft", canaries=CANARIES)),
        lambda: evidence_for(config_of("reference", tp=2, pp=2, cp=2, canaries=CANARIES)),
        lambda: evidence_for(config_of("unpacked", dp=2)),
        with_routers,
        with_predictions,
    ],
)
def test_clean_evidence_has_no_contradiction(make: Callable[[], CellEvidence]) -> None:
    assert contradiction(make()) == ""


@pytest.mark.parametrize("rank", [2, 3])
def test_the_loss_of_a_step_is_the_sum_over_its_documents_on_every_tp_rank(rank: int) -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    seen = evidence.records[rank].steps[1]
    whole = seen.loss_sum
    assert whole is not None
    seen.loss_sum = whole * (1 + 0.9e-4)
    assert contradiction(evidence) == ""
    seen.loss_sum = whole * (1 + 1.1e-4)
    assert contradiction(evidence) == (
        f"record of rank {rank}: steps: step 1: loss_sum is {seen.loss_sum:.9g}, the documents add up to {whole:.9g}"
    )
    seen.loss_sum = None
    assert contradiction(evidence) == ""


def test_a_token_of_two_cp_ranks_has_two_losses() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    token = evidence.records[1].steps[0].tokens[3]
    evidence.records[0].steps[0].tokens.append(replace(token))
    place = f"token {token.position} of document {token.document}"
    assert contradiction(evidence) == f"steps: step 0: {place} has two losses"


def test_tokens_of_other_tp_ranks_are_not_counted_twice() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].steps[0] = replace(evidence.records[0].steps[0])
    assert contradiction(evidence) == ""


def test_the_steps_of_the_result_took_as_long_as_the_slowest_rank() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    evidence.records[1].steps[0].time_s = 0.75
    assert contradiction(evidence) == "result.json: steps_s is 1.0, the slowest rank took 1.25"
    evidence.result.steps_s = 1.25
    assert contradiction(evidence) == ""
    evidence.result.steps_s = 1.250003
    assert contradiction(evidence) == "result.json: steps_s is 1.250003, the slowest rank took 1.25"
    evidence.result = None
    assert contradiction(evidence) == ""


def test_a_token_is_one_of_its_document() -> None:
    def move(position: int) -> Callable[[StepSeen], None]:
        def change(seen: StepSeen) -> None:
            (token,) = (token for token in seen.tokens if token.document == 0)
            token.position = position

        return change

    assert after(move(0)) == ""
    for position in (1, -1):
        problem = f"steps: step 0: document 0 has no token {position}"
        assert after(move(position)) == f"record of rank 0: {problem}"


def test_a_token_of_no_document_is_named() -> None:
    def change(seen: StepSeen) -> None:
        seen.tokens.append(TokenLoss(document=8, position=0, loss=0.0))

    assert after(change) == "record of rank 0: steps: step 0: document 8 has no token 0"


def test_the_tokens_of_a_document_add_up_to_its_loss() -> None:
    def less(seen: StepSeen) -> None:
        seen.documents[5].loss_sum *= 1 + 2e-6

    def fewer(seen: StepSeen) -> None:
        seen.documents[5].tokens += 1

    seen = evidence_for(config_of("sft")).records[0].steps[0].documents[5]
    tokens, whole = seen.tokens, seen.loss_sum
    words = "record of rank 0: steps: step 0: document 5 has loss"
    assert after(less) == (
        f"{words} {whole * (1 + 2e-6):.9g} over {tokens} tokens, its tokens add up to {whole:.9g} over {tokens}"
    )
    assert after(fewer) == (
        f"{words} {whole:.9g} over {tokens + 1} tokens, its tokens add up to {whole:.9g} over {tokens}"
    )
    assert after(lambda step: setattr(step.documents[5], "loss_sum", whole * (1 + 0.5e-6))) == ""


def test_a_document_without_losses_of_tokens_has_no_loss() -> None:
    def change(seen: StepSeen) -> None:
        seen.tokens = [token for token in seen.tokens if token.document != 0]

    loss = evidence_for(config_of("sft")).records[0].steps[0].documents[0].loss_sum
    assert after(change) == (
        f"record of rank 0: steps: step 0: document 0 has loss {loss:.9g} over 1 tokens, its tokens add up to 0 over 0"
    )


def test_tokens_with_losses_are_of_documents_with_a_loss() -> None:
    """The other cp rank has the loss of the document, so that the step adds up."""
    evidence = evidence_for(config_of("sft", cp=2))
    one, other = (record.steps[0] for record in at(evidence, tp=0))
    for document in (5, 2):
        moved = one.documents.pop(document)
        other.documents[document].loss_sum += moved.loss_sum
        other.documents[document].tokens += moved.tokens
    assert contradiction(evidence) == "record of rank 0: steps: step 0: losses of tokens of document 2, which has none"


def test_the_losses_of_tokens_beyond_the_limit_are_not_recorded() -> None:
    """A record that reached the limit holds the first tokens only, so they need not add up."""

    def change(count: int) -> Callable[[StepSeen], None]:
        def fill(seen: StepSeen) -> None:
            seen.tokens = [TokenLoss(document=9, position=number, loss=1.0) for number in range(count)]

        return fill

    assert after(change(MOST_TOKEN_LOSSES)) == ""
    problem = "steps: step 0: document 9 has no token 0"
    assert after(change(MOST_TOKEN_LOSSES - 1)) == f"record of rank 0: {problem}"


def test_a_record_without_steps_has_no_sums() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    evidence.records[0].steps = []
    assert contradiction(evidence) == ""


def other(value: Fingerprint, *, norm: float = 0.0, projection: float = 0.0) -> Fingerprint:
    """A fingerprint that differs by shares of its norm."""
    scale: float = value.norm_sq**0.5
    projections = [value.projections[0], value.projections[1] + projection * scale]
    return Fingerprint(norm_sq=value.norm_sq * (1 + norm), projections=projections)


@pytest.mark.parametrize("where", ["", "legs: determinism: "])
def test_the_parts_of_a_gradient_add_up_to_it(where: str) -> None:
    evidence = evidence_for(config_of("sft", canaries=CANARIES))
    record = evidence.records[0]
    (leg,) = (leg for leg in record.legs if leg.leg == "determinism")
    seen = (leg.parameters if where else record.parameters)[1]
    right, parts = seen.gradient, seen.parts
    assert len(parts) == 8
    problem = f"the parts of {seen.name} do not add up to its gradient"
    wrong = f"record of rank 0: {where or 'parameters: '}{problem}"
    for gradient, found in (
        (other(right, norm=2e-6), wrong),
        (other(right, norm=0.5e-6), ""),
        (other(right, projection=2e-6), wrong),
        (other(right, projection=-2e-6), wrong),
        (other(right, projection=0.5e-6), ""),
    ):
        seen.gradient = gradient
        assert contradiction(evidence) == found
    seen.gradient = right
    del parts[-1]
    assert contradiction(evidence) == wrong
    parts.clear()
    assert contradiction(evidence) == ""


@pytest.mark.parametrize("rank", [2, 3])
def test_the_loss_of_a_leg_is_the_sum_over_its_documents_on_every_tp_rank(rank: int) -> None:
    evidence = evidence_for(config_of("reference", tp=2, pp=2, canaries=("determinism",)))
    seen = evidence.records[rank].legs[0]
    tokens, whole = seen.token_count, seen.loss_sum
    words = f"record of rank {rank}: legs: determinism: loss_sum is"
    seen.loss_sum = whole * (1 + 0.9e-4)
    assert contradiction(evidence) == ""
    seen.loss_sum = whole * (1 + 1.1e-4)
    assert contradiction(evidence) == (
        f"{words} {seen.loss_sum:.9g} over {tokens} tokens, the documents add up to {whole:.9g} over {tokens}"
    )
    seen.loss_sum, seen.token_count = whole, tokens + 1
    assert contradiction(evidence) == (
        f"{words} {whole:.9g} over {tokens + 1} tokens, the documents add up to {whole:.9g} over {tokens}"
    )


def test_losses_of_padding_in_a_leg_belong_to_no_document() -> None:
    evidence = evidence_for(config_of("reference", tp=2, canaries=("determinism",)))
    evidence.records[0].legs[0].documents[PAD] = DocumentLoss(loss_sum=3.0, tokens=2)
    assert contradiction(evidence) == ""


def test_a_leg_without_the_model_has_no_loss() -> None:
    config = replace(config_of("sft", canaries=("truncation",)), documents=mix("uncut", 64, 2))
    evidence = evidence_for(config)
    evidence.records[0].legs[0].token_count = 3  # a problem of the leg, not of its sums
    assert contradiction(evidence) == ""


def test_only_the_last_stage_has_losses_of_legs() -> None:
    evidence = evidence_for(config_of("reference", pp=2, canaries=("determinism",)))
    evidence.records[0].legs[0].token_count = 3  # a problem of the leg, not of its sums
    assert contradiction(evidence) == ""
