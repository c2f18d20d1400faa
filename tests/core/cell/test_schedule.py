"""Schedules of the learning rate and the weight decay, against megatron-core's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from harness.core.cell.arguments import Argument, Arguments
from harness.core.cell.schedule import Schedule, same_rate
from tests.oracle.test_train import cell


@pytest.mark.parametrize("warm", [0, 1, 3])
@pytest.mark.parametrize(
    ("style", "last"),
    [
        ("constant", ""),
        ("linear", ""),
        ("cosine", ""),
        ("inverse-square-root", ""),
        ("WSD", "linear"),
        ("WSD", "cosine"),
        ("WSD", "exponential"),
        ("WSD", "minus_sqrt"),
    ],
)
def test_schedules_are_those_of_upstream(style: str, last: str, warm: int) -> None:
    """Also where the decay at the end begins before the warm-up ends."""
    group: dict[str, float] = {"lr": 0.0, "weight_decay": 0.0}
    upstream = OptimizerParamScheduler(
        cast(Any, SimpleNamespace(param_groups=[group])),
        init_lr=0.01,
        max_lr=0.5,
        min_lr=0.02,
        lr_warmup_steps=warm,
        lr_decay_steps=10,
        lr_decay_style=style,
        start_wd=0.1,
        end_wd=0.4,
        wd_incr_steps=7,
        wd_incr_style="cosine" if warm else "linear",
        wsd_decay_steps=8 if warm == 3 else 4,
        lr_wsd_decay_style=last or "exponential",
    )
    own = Schedule(
        most=0.5,
        least=0.02,
        least_warm=0.01,
        warm=warm,
        length=10,
        style=style,
        last=8 if warm == 3 else 4,
        last_style=last or "exponential",
        decay=0.1,
        decay_end=0.4,
        decay_style="cosine" if warm else "linear",
        decay_length=7,
    )
    for step in range(13):
        assert own.rate(step) == pytest.approx(group["lr"], rel=1e-12), step
        assert own.weight_decay(step) == pytest.approx(group["weight_decay"], rel=1e-12), step
        upstream.step(1)


def schedule_of(**given: Any) -> Schedule:
    plain = cell()
    decay = Arguments((Argument(name="weight_decay", words=("0.2",)),))
    return Schedule.of(replace(plain, train=replace(plain.train, lr=0.3, **given), args=decay))


PLAIN = Schedule(most=0.3, length=2, decay=0.2, decay_end=0.2, decay_length=2)


def test_without_keys_rate_and_decay_are_constant() -> None:
    assert schedule_of() == PLAIN
    assert [(PLAIN.rate(step), PLAIN.weight_decay(step)) for step in range(4)] == [(0.3, 0.2)] * 4


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("lr_decay_iters", 7, "length"),
        ("lr_decay_iters", 1, "length"),
        ("min_lr", 0.1, "least"),
        ("lr_warmup_init", 0.1, "least_warm"),
        ("lr_warmup_iters", 3, "warm"),
        ("lr_decay_style", "cosine", "style"),
        ("lr_wsd_decay_iters", 3, "last"),
        ("lr_wsd_decay_style", "linear", "last_style"),
        ("start_weight_decay", 0.0, "decay"),
        ("end_weight_decay", 0.1, "decay_end"),
        ("weight_decay_incr_style", "cosine", "decay_style"),
    ],
)
def test_each_key_of_a_schedule_is_read(name: str, value: Any, field: str) -> None:
    assert schedule_of(**{name: value}) == replace(PLAIN, **{field: value})


def test_a_warm_up_may_be_a_part_of_the_decay() -> None:
    assert schedule_of(lr_warmup_fraction=0.25, lr_decay_iters=8) == replace(PLAIN, warm=2, length=8)


def test_the_next_step_has_another_rate_even_at_the_end_of_a_long_cosine() -> None:
    schedule = Schedule(most=1e-6, length=10_000, style="cosine")
    assert not any(same_rate(schedule.rate(step), schedule.rate(step + 1)) for step in (1, 5_000, 9_998))
