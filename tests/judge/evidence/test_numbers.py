from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.run.records import (
    DocumentLoss,
    ExpertShare,
    LegSeen,
    MtpSeen,
    RankRecord,
    RouterSeen,
    StepSeen,
    TokenLoss,
)
from harness.core.run.tensor_records import ActivationSeen, Fingerprint, ParameterSeen
from harness.judge.evidence.numbers import BadNumber, scan
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import config_of, evidence_for

STEP_0: dict[str, Any] = {"stage": 1, "rank": 3, "step": 0}
IN_LEG: dict[str, Any] = {"stage": 1, "rank": 3, "leg": "order", "step": 0}
NOT_FINITE = [math.nan, math.inf, -math.inf]


def fingerprint() -> Fingerprint:
    return Fingerprint(norm_sq=4.0, projections=[1.0, -20.0])


def losses() -> dict[int, DocumentLoss]:
    return {5: DocumentLoss(loss_sum=1.0, tokens=2)}


def outputs(layer: int) -> list[ActivationSeen]:
    return [ActivationSeen(layer=layer, documents={5: fingerprint()})]


def share() -> ExpertShare:
    return ExpertShare(tokens=1, counts=[1, 1], scores=[0.5, 0.5])


def gradients(parts: int) -> list[ParameterSeen]:
    split = [fingerprint() for _ in range(parts)]
    return [ParameterSeen(name="w", sharded=False, gradient=fingerprint(), parts=split)]


def record() -> RankRecord:
    """A record with one number, or two, of every kind."""
    first = StepSeen(step=0, micro_batches=1, loss_sum=1.0, grad_norm=1.0, documents=losses())
    first.tokens = [TokenLoss(document=5, position=0, loss=1.0)]
    leg = LegSeen(leg="order", loss_sum=1.0, documents=losses(), parameters=gradients(1))
    leg.tokens = [TokenLoss(document=5, position=0, loss=1.0)]
    leg.activations = outputs(2)
    router = RouterSeen(layer=2, micro_batch=1, real=[share()], padding=[share()], aux_loss=0.1, aux_weighted=0.2)
    return RankRecord(
        cell="cell",
        rank=3,
        place=Coordinates(tp=0, cp=0, dp=0, pp=1),
        activations=outputs(2),
        aux_scale=1.0,
        routers=[router],
        mtp=[MtpSeen(depth=1, micro_batch=1, documents=losses())],
        steps=[first, StepSeen(step=1, micro_batches=1, loss_sum=0.9, grad_norm=1.0)],
        parameters=gradients(1),
        legs=[leg],
    )


@pytest.mark.parametrize(
    "records",
    [
        lambda: evidence_for(config_of("reference", tp=2, canaries=("determinism",))).records,
        lambda: with_routers().records,
        lambda: with_predictions().records,
        lambda: {0: record()},
    ],
)
def test_clean_records_have_no_bad_number(records: Callable[[], dict[int, RankRecord]]) -> None:
    assert [item for one in records().values() for item in scan(one).bad] == []


@pytest.mark.parametrize(
    ("drop", "numbers"),
    [
        (lambda record: None, 0),
        (lambda record: record.activations.clear(), 3),
        (lambda record: setattr(record, "aux_scale", None), 1),
        (lambda record: record.routers.clear(), 6),
        (lambda record: record.routers[0].real.clear(), 2),
        (lambda record: record.routers[0].padding.clear(), 2),
        (lambda record: setattr(record.routers[0], "aux_loss", None), 1),
        (lambda record: setattr(record.routers[0], "aux_weighted", None), 1),
        (lambda record: record.mtp.clear(), 1),
        (lambda record: record.steps[0].documents.clear(), 1),
        (lambda record: record.steps[0].tokens.clear(), 1),
        (lambda record: setattr(record.steps[0], "loss_sum", None), 1),
        (lambda record: setattr(record.steps[1], "grad_norm", None), 1),
        (lambda record: record.parameters.clear(), 6),
        (lambda record: record.parameters[0].parts.clear(), 3),
        (lambda record: record.legs.clear(), 12),
        (lambda record: record.legs[0].activations.clear(), 3),
        (lambda record: record.legs[0].documents.clear(), 1),
        (lambda record: record.legs[0].tokens.clear(), 1),
        (lambda record: record.legs[0].parameters.clear(), 6),
    ],
)
def test_every_number_is_counted(drop: Callable[[RankRecord], object], numbers: int) -> None:
    whole = record()
    drop(whole)
    assert scan(whole).numbers == 35 - numbers


def set_of(*path: Any) -> Callable[[RankRecord, float], None]:
    """A function that sets the number at a path of attributes, indices and keys."""

    def change(whole: RankRecord, value: float) -> None:
        holder: Any = whole
        for key in path[:-1]:
            holder = getattr(holder, key) if isinstance(key, str) else holder[key]
        if isinstance(path[-1], str):
            setattr(holder, path[-1], value)
        else:
            holder[path[-1]] = value

    return change


LEG = "in canary leg order"


@pytest.mark.parametrize("value", NOT_FINITE)
@pytest.mark.parametrize(
    ("path", "what", "where", "order"),
    [
        (
            ("activations", 0, "documents", 5, "norm_sq"),
            "the activation of document 5 after layer 2",
            STEP_0 | {"layer": 2, "document": 5},
            (0, 0, 2),
        ),
        (
            ("activations", 0, "documents", 5, "projections", 1),
            "the activation of document 5 after layer 2",
            STEP_0 | {"layer": 2, "document": 5},
            (0, 0, 2),
        ),
        (("aux_scale",), "the scale of auxiliary losses", STEP_0, (0, 1)),
        (
            ("routers", 0, "real", 0, "scores", 1),
            "a router score of layer 2",
            STEP_0 | {"layer": 2, "micro_batch": 1},
            (0, 1, 2),
        ),
        (
            ("routers", 0, "padding", 0, "scores", 0),
            "a router score of layer 2",
            STEP_0 | {"layer": 2, "micro_batch": 1},
            (0, 1, 2),
        ),
        (
            ("routers", 0, "aux_loss"),
            "the auxiliary loss of layer 2",
            STEP_0 | {"layer": 2, "micro_batch": 1},
            (0, 1, 2),
        ),
        (
            ("routers", 0, "aux_weighted"),
            "its weighted value of layer 2",
            STEP_0 | {"layer": 2, "micro_batch": 1},
            (0, 1, 2),
        ),
        (
            ("mtp", 0, "documents", 5, "loss_sum"),
            "the loss of document 5 at prediction depth 1",
            STEP_0 | {"depth": 1, "micro_batch": 1, "document": 5},
            (0, 2, 0),
        ),
        (
            ("steps", 0, "documents", 5, "loss_sum"),
            "the loss of document 5 in step 0",
            STEP_0 | {"document": 5},
            (0, 2, 0),
        ),
        (("steps", 0, "tokens", 0, "loss"), "a token's loss", STEP_0, (0, 2, 0)),
        (("steps", 0, "loss_sum"), "the loss of step 0", STEP_0, (0, 2, 0)),
        (("steps", 1, "grad_norm"), "the gradient norm of step 1", STEP_0 | {"step": 1}, (0, 2, 1)),
        (("parameters", 0, "gradient", "norm_sq"), "the gradient of w", STEP_0 | {"parameter": "w"}, (0, 3)),
        (
            ("parameters", 0, "parts", 0, "projections", 0),
            "part of the gradient of w",
            STEP_0 | {"parameter": "w"},
            (0, 3),
        ),
        (
            ("legs", 0, "activations", 0, "documents", 5, "norm_sq"),
            f"the activation of document 5 after layer 2 {LEG}",
            IN_LEG | {"layer": 2, "document": 5},
            (1, 0, 2),
        ),
        (
            ("legs", 0, "documents", 5, "loss_sum"),
            f"the loss of document 5 {LEG}",
            IN_LEG | {"document": 5},
            (1, 1),
        ),
        (("legs", 0, "tokens", 0, "loss"), f"a token's loss {LEG}", IN_LEG, (1, 1)),
        (("legs", 0, "loss_sum"), f"the loss {LEG}", IN_LEG, (1, 1)),
        (
            ("legs", 0, "parameters", 0, "gradient", "projections", 1),
            f"the gradient of w {LEG}",
            IN_LEG | {"parameter": "w"},
            (1, 3),
        ),
    ],
)
def test_a_number_that_is_not_finite_is_found_with_its_place(
    value: float, path: tuple[Any, ...], what: str, where: dict[str, Any], order: tuple[int, ...]
) -> None:
    whole = record()
    set_of(*path)(whole, value)
    found = scan(whole)
    assert found.bad == [BadNumber(what=what, value=value, where=where, order=order)]
    assert found.numbers == 35


def test_of_losses_whose_sum_overflows_only_those_that_are_not_finite_are_bad() -> None:
    whole = record()
    whole.steps[0].tokens = [TokenLoss(document=5, position=n, loss=1e308) for n in range(3)]
    assert scan(whole).bad == []
    whole.steps[0].tokens[1].loss, whole.steps[0].tokens[2].loss = math.inf, -math.inf
    assert [item.value for item in scan(whole).bad] == [math.inf, -math.inf]


def test_numbers_of_the_second_leg_come_after_the_first() -> None:
    whole = record()
    whole.legs.append(LegSeen(leg="padding", loss_sum=math.nan))
    whole.legs[0].loss_sum = whole.aux_scale = math.inf
    assert [(item.what, item.order) for item in scan(whole).bad] == [
        ("the scale of auxiliary losses", (0, 1)),
        (f"the loss {LEG}", (1, 1)),
        ("the loss in canary leg padding", (2, 1)),
    ]
