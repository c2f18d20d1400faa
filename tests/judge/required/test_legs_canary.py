"""Records required of canary legs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.packing.arithmetic import PAD
from harness.core.packing.documents import mix
from harness.core.run.records import DocumentLoss, LegSeen, TokenLoss
from harness.judge.required import legs
from harness.judge.required.expected import Expected
from tests.judge.simulator import config_of, evidence_for

LOSS = DocumentLoss(loss_sum=1.0, tokens=1)
TOKEN = TokenLoss(document=0, position=0, loss=1.0)
NO_DOCUMENTS = "it has losses of documents, which only tp rank 0 of the last stage records"
NO_TOKENS = "it has losses of tokens, which only step 0 records"


def after(change: Callable[[LegSeen], object], canary: str, rank: int = 0, **layout: int) -> list[str]:
    """Problems of a rank after a change of its only canary leg."""
    config = replace(config_of("sft", canaries=(canary,), **layout), documents=mix("uncut", 64, 2))
    evidence = evidence_for(config)
    record = evidence.records[rank]
    (leg,) = record.legs
    change(leg)
    prefix = f"legs: {leg.leg}: "
    found = list(legs.problems(Expected(evidence), record))
    assert all(problem.startswith(prefix) for problem in found), found
    return [problem.removeprefix(prefix) for problem in found]


def set_fields(**fields: Any) -> Callable[[LegSeen], None]:
    def change(leg: LegSeen) -> None:
        for name, value in fields.items():
            setattr(leg, name, value)

    return change


@pytest.mark.parametrize("canary", ["determinism", "truncation"])
def test_clean_legs_have_no_problem(canary: str) -> None:
    for rank in range(4):
        assert after(set_fields(), canary, rank, tp=2, pp=2) == []


def test_a_leg_without_the_model_records_its_batches() -> None:
    def wrong(leg: LegSeen) -> None:
        batch = leg.batches[0]
        assert batch.tokens is not None
        batch.tokens = replace(batch.tokens, shape=[1, 1])

    assert after(lambda leg: leg.batches.pop(), "truncation") == [
        "batches: 1 missing, such as (0, 0, 7); 8 are planned"
    ]
    assert after(wrong, "truncation") == [
        "leg batches: step 0, chunk 0, micro-batch 0: tokens has shape [1, 1] and no mismatch; the plan has [1, 64]"
    ]


def test_a_leg_with_the_model_records_no_batches() -> None:
    config = replace(config_of("sft"), documents=mix("uncut", 64, 2))
    batch = evidence_for(config).records[0].batches[0]
    assert after(lambda leg: leg.batches.append(batch), "determinism") == ["it runs the model but holds batches"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loss_sum": 1.5}, "loss_sum 1.5, token_count 0"),
        ({"token_count": 2}, "loss_sum 0.0, token_count 2"),
    ],
)
def test_a_loss_is_computed_by_the_model_of_the_last_stage_only(fields: dict[str, Any], words: str) -> None:
    problem = f"{words} where no loss is computed"
    assert after(set_fields(**fields), "truncation") == [problem]
    assert after(set_fields(**fields), "determinism", pp=2) == [problem]


def test_losses_of_documents_are_recorded_by_one_tp_rank_of_the_last_stage() -> None:
    change = set_fields(documents={0: LOSS})
    assert after(change, "truncation") == [NO_DOCUMENTS]
    assert after(change, "determinism", pp=2) == [NO_DOCUMENTS]
    assert after(change, "determinism", rank=1, tp=2) == [NO_DOCUMENTS]


def test_a_leg_has_no_losses_of_tokens() -> None:
    change = set_fields(tokens=[TOKEN])
    assert after(change, "determinism") == [NO_TOKENS]
    assert after(change, "determinism", pp=2) == [NO_DOCUMENTS, NO_TOKENS]


def test_losses_are_of_documents_of_the_leg_or_of_padding() -> None:
    def change(leg: LegSeen) -> None:
        leg.documents |= {9: LOSS, 8: LOSS, PAD: LOSS}

    assert after(change, "determinism") == ["losses: there is no document 8"]
