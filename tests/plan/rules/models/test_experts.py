"""Rules of routers and experts: each rejects a cell and allows the nearest one."""

from __future__ import annotations

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.model import ModelConfig, MoeConfig
from tests.plan.rules.models.test_model import cell, reason


def experts(**moe: object) -> ModelConfig:
    return ModelConfig(moe=MoeConfig(**moe))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        ("layout.etp-needs-experts", cell(tp=2, etp=1), "the model is dense", cell(tp=2, etp=1, model=experts())),
        (
            "layout.ep-by-ranks",
            cell(tp=2, etp=1, ep=4, model=experts()),
            "tp 2 x dp 1 x cp 1 = 2 is not divisible by etp 1 x ep 4 = 4",
            cell(tp=2, etp=1, ep=2, model=experts()),
        ),
        (
            "moe.ffn-by-tp",
            cell(dp=2, etp=2, model=experts(ffn=63)),
            "model.moe.ffn 63 is not divisible by etp 2",
            cell(tp=2, etp=1, model=experts(ffn=63)),
        ),
        (
            "moe.shared-ffn-by-tp",
            cell(tp=2, model=experts(shared_ffn=33)),
            "model.moe.shared_ffn 33 is not divisible by tp 2",
            cell(tp=2, model=experts(shared_ffn=32)),
        ),
        (
            "moe.bias-needs-sigmoid",
            cell(model=experts(expert_bias=True)),
            "set score_function: sigmoid",
            cell(model=experts(expert_bias=True, score_function="sigmoid")),
        ),
        (
            "moe.padding-needs-capacity",
            cell(model=experts(pad_to_capacity=True)),
            "without a capacity_factor",
            cell(model=experts(pad_to_capacity=True, capacity_factor=1.0)),
        ),
        (
            "moe.dropping",
            cell(cp=2, model=experts(capacity_factor=1.0)),
            "a rank of tp 1 x cp 2 drops tokens by its own part of a row",
            cell(cp=2, model=experts(capacity_factor=2.0)),
        ),
        (
            "moe.dropping",
            cell("sft", model=experts(capacity_factor=1.0)),
            "rows of packing sft are not those of its control",
            cell(dp=2, model=experts(capacity_factor=1.0)),
        ),
        (
            "attention.skip-needs-window",
            cell(model=ModelConfig(window_skip=2)),
            "without a window",
            cell(model=ModelConfig(window_skip=2, window=0)),
        ),
    ],
)
def test_a_rule_rejects_a_cell_and_allows_the_nearest_one(
    rule: str, wrong: CellConfig, expected: str, right: CellConfig
) -> None:
    assert expected in (reason(rule, wrong) or "")
    assert reason(rule, right) is None
