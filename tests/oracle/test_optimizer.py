"""Clipping and Adam against torch's, schedules against megatron-core's."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from harness.core.cell.arguments import Argument, Arguments
from harness.oracle.fields import Optimizer
from harness.oracle.optimizer import Adam, Schedule, clip_coefficient, gradient_norm
from tests.oracle.test_train import cell

SHAPES = {"matrix": (3, 4), "norm": (4,)}


def drawn(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(("decoupled", "torchs"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_four_updates_are_those_of_torch_with_norms_that_do_not_decay(decoupled: bool, torchs: type) -> None:
    settings = Optimizer(lr=0.1, beta1=0.8, beta2=0.95, epsilon=1e-6, decay=0.3, decoupled=decoupled)
    weights = drawn(0)
    theirs = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    groups = [
        {"params": [theirs["matrix"]], "weight_decay": 0.3},
        {"params": [theirs["norm"]], "weight_decay": 0.0},
    ]
    other = torchs(groups, lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    adam, begin = Adam.of(settings, weights), {name: weight.clone() for name, weight in weights.items()}
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for step in range(4):
        gradients = drawn(step + 1)
        for name, change in adam.update(weights, gradients, 0.1, 0.3).items():
            total[name] += change
        for name, weight in theirs.items():
            weight.grad = gradients[name]
        other.step()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, theirs[name].detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(begin[name] + total[name], weight, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(adam.first[name], other.state[theirs[name]]["exp_avg"], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(adam.second[name], other.state[theirs[name]]["exp_avg_sq"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("most", [0.5, 3.0, 100.0])
def test_norm_and_clipping_are_those_of_torch(most: float) -> None:
    gradients = drawn(5)
    weights = [torch.zeros_like(gradient).requires_grad_() for gradient in gradients.values()]
    for weight, gradient in zip(weights, gradients.values()):
        weight.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(weights, most)
    assert gradient_norm(gradients) == pytest.approx(float(norm), rel=1e-14)
    for weight, gradient in zip(weights, gradients.values()):
        torch.testing.assert_close(gradient * clip_coefficient(float(norm), most), weight.grad, rtol=1e-13, atol=0)


def test_without_a_limit_nothing_is_clipped() -> None:
    assert clip_coefficient(1e9, 0.0) == 1.0


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
        SimpleNamespace(param_groups=[group]),
        init_lr=0.01,
        max_lr=0.5,
        min_lr=0.02,
        lr_warmup_steps=warm,
        lr_decay_steps=10,
        lr_decay_style=style,
        start_wd=0.1,
        end_wd=0.4,
        wd_incr_steps=10,
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
    )
    for step in range(13):
        assert own.rate(step) == pytest.approx(group["lr"], rel=1e-12), step
        assert own.weight_decay(step) == pytest.approx(group["weight_decay"], rel=1e-12), step
        upstream.step(1)


def schedule_of(**given: float | str) -> Schedule:
    words = tuple(Argument(name=name, words=(str(value),)) for name, value in given.items())
    return Schedule.of(replace(cell(), args=Arguments(words)), Optimizer(lr=0.3, decay=0.2))


PLAIN = Schedule(most=0.3, length=2, decay=0.2, decay_end=0.2)


def test_without_arguments_rate_and_decay_are_constant() -> None:
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
        ("start_weight_decay", 0.1, "decay"),
        ("end_weight_decay", 0.1, "decay_end"),
        ("weight_decay_incr_style", "cosine", "decay_style"),
    ],
)
def test_each_argument_of_a_schedule_is_read(name: str, value: float | str, field: str) -> None:
    assert schedule_of(**{name: value}) == replace(PLAIN, **{field: value})  # type: ignore[arg-type]


def test_a_warm_up_may_be_a_part_of_the_decay() -> None:
    found = schedule_of(lr_warmup_fraction=0.25, lr_decay_iters=8, lr_warmup_iters=5)
    assert found == replace(PLAIN, warm=2, length=8)


def test_a_schedule_has_at_least_one_step() -> None:
    assert schedule_of(lr_decay_iters=0).length == 1
