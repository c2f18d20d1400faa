from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.arguments import Argument, Arguments
from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.matrix.rules.table import rejections


def rejected(trainer: str = "harness", **train: Any) -> dict[str, str]:
    settings = replace(TrainConfig(steps=4, lr=0.1), **train)
    config = CellConfig(layout=Layout(), data_path="sft", trainer=trainer, train=settings)
    return {item.rule: item.reason for item in rejections(config) if item.rule.startswith("schedule.")}


@pytest.mark.parametrize(
    ("rule", "train", "says"),
    [
        ("rates", {"min_lr": 0.2}, "train.min_lr 0.2 is above train.lr 0.1"),
        ("rates", {"lr_warmup_init": 0.2}, "train.lr_warmup_init 0.2"),
        ("one-warmup", {"lr_warmup_fraction": 0.5, "lr_warmup_iters": 1}, "set one of them"),
        ("warmup", {"lr_warmup_iters": 4}, "in 4 steps, and its schedule ends at train.steps 4"),
        ("warmup", {"lr_warmup_fraction": 1.0, "lr_decay_iters": 3}, "ends at train.lr_decay_iters 3"),
        ("wsd", {"lr_decay_style": "WSD"}, "set train.lr_wsd_decay_iters"),
        ("inverse-root", {"lr_decay_style": "inverse-square-root"}, "set train.lr_warmup_iters"),
        ("decay", {"start_weight_decay": 0.1}, "weight_decay_incr_style is constant"),
        ("decay", {"weight_decay_incr_style": "linear", "start_weight_decay": 0.1}, "set train.end_weight_decay"),
        (
            "decay",
            {"weight_decay_incr_style": "linear", "start_weight_decay": 0.1, "end_weight_decay": 0.0},
            "train.start_weight_decay 0.1 is above train.end_weight_decay 0",
        ),
        ("skyrl", {"trainer": "skyrl", "lr_decay_style": "cosine"}, "not train.lr_decay_style"),
    ],
)
def test_a_schedule_that_upstream_refuses_is_rejected(rule: str, train: dict[str, Any], says: str) -> None:
    found = rejected(**train)
    assert list(found) == [f"schedule.{rule}"] and says in found[f"schedule.{rule}"]


@pytest.mark.parametrize(
    "train",
    [
        {},
        {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 2},
        {"lr_wsd_decay_iters": 2},  # where another cell of the axis is WSD
        {"lr_decay_style": "inverse-square-root", "lr_warmup_fraction": 0.25},
        {"lr_warmup_iters": 5, "lr_decay_iters": 6, "min_lr": 0.1, "lr_warmup_init": 0.1},
        {"weight_decay_incr_style": "cosine", "start_weight_decay": 0.0, "end_weight_decay": 0.0},
        {"trainer": "skyrl", "lr_warmup_iters": 2},
    ],
)
def test_others_are_not(train: dict[str, Any]) -> None:
    assert rejected(**train) == {}


def test_a_constant_weight_decay_has_no_effect_beside_one_that_grows() -> None:
    train = replace(TrainConfig(), weight_decay_incr_style="linear", start_weight_decay=0.0, end_weight_decay=0.1)
    args = Arguments((Argument(name="weight_decay", words=("0.1",)),))
    config = CellConfig(layout=Layout(), data_path="sft", train=train, args=args)
    assert [item.rule for item in rejections(config)] == ["schedule.decay"]
