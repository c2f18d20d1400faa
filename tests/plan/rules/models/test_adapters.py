"""Rules of models with adapters: each rejects a cell and allows the nearest one."""

from __future__ import annotations

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.model import MlaConfig, ModelConfig, MoeConfig, MtpConfig
from harness.core.peft import PeftConfig
from tests.plan.rules.models.test_model import cell, reason


def adapted(rank: int = 4, **model: object) -> ModelConfig:
    return ModelConfig(peft=PeftConfig(rank=rank), **model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        (
            "peft.rank-by-tp",
            cell(tp=4, model=adapted(6)),
            "model.peft.rank 6 is not divisible by tp 4",
            cell(tp=2, model=adapted(6)),
        ),
        (
            "peft.rank-by-tp",
            cell(dp=4, etp=4, model=adapted(6, moe=MoeConfig())),
            "model.peft.rank 6 is not divisible by tp 4",
            cell(dp=4, etp=4, model=adapted(8, moe=MoeConfig())),
        ),
        ("peft.parts", cell(model=adapted(mtp=MtpConfig())), "model.peft with model.mtp", cell(model=adapted())),
        (
            "peft.parts",
            cell(model=adapted(layers=2, pattern="*-")),
            "model.peft with model.pattern",
            cell(model=ModelConfig(layers=2, pattern="*-")),
        ),
        (
            "peft.latent-attention",
            cell(model=adapted(mla=MlaConfig())),
            "latent attention has no linear_qkv",
            cell(model=ModelConfig(mla=MlaConfig())),
        ),
    ],
)
def test_a_rule_rejects_a_cell_and_allows_the_nearest_one(
    rule: str, wrong: CellConfig, expected: str, right: CellConfig
) -> None:
    assert expected in (reason(rule, wrong) or "")
    assert reason(rule, right) is None
