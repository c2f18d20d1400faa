"""Rules of hybrid models: each rejects a cell and allows the nearest one."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.model import MlaConfig, ModelConfig, MtpConfig
from tests.plan.rules.models.test_model import cell, reason

WITHOUT = "model.pattern with model.mtp: the probe does not build it in hybrid models"


def hybrid(pattern: str, model: dict[str, Any] | None = None, **layout: Any) -> CellConfig:
    layers = len(pattern.replace("|", ""))
    return cell(model=ModelConfig(layers=layers, pattern=pattern, **(model or {})), **layout)


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        (
            "hybrid.cuts-by-stages",
            hybrid("*|-|*-", pp=2),
            "model.pattern has 3 stages, and the layout has pp 2 x vpp 1 = 2",
            hybrid("*-|*-", pp=2),
        ),
        (
            "hybrid.interleaving-needs-cuts",
            hybrid("*-*-", pp=2, vpp=2),
            "vpp 2 without cuts: model.pattern needs | between its pp 2 x vpp 2 chunks",
            hybrid("*|-|*|-", pp=2, vpp=2),
        ),
        (
            "hybrid.heads-by-ranks",
            hybrid("M-", tp=2, cp=8),
            "model.heads 8 is not divisible by tp 2 x cp 8 = 16: 8 = 0 * 16 + 8",
            hybrid("M-", tp=2, cp=4),
        ),
        (
            "hybrid.heads-by-ranks",
            hybrid("G-", cp=8),
            "model.kv_heads 4 is not divisible by tp 1 x cp 8 = 8: 4 = 0 * 8 + 4",
            hybrid("M-", cp=8),
        ),
        (
            "hybrid.groups-by-context",
            hybrid("M-", {"hidden": 96, "heads": 12, "kv_heads": 4}, cp=6),
            "model.kv_heads 4 / tp 1 = 4 groups, neither a multiple nor a divisor of cp 6",
            hybrid("M-", {"hidden": 96, "heads": 12, "kv_heads": 6}, cp=6),
        ),
        ("hybrid.parts", hybrid("*-", {"mtp": MtpConfig()}), WITHOUT, hybrid("*-")),
        ("hybrid.parts", hybrid("*-", {"mla": MlaConfig()}), WITHOUT.replace("mtp", "mla"), hybrid("*-")),
    ],
)
def test_a_rule_rejects_and_allows(rule: str, wrong: CellConfig, expected: str, right: CellConfig) -> None:
    assert reason(rule, wrong) == expected
    assert reason(rule, right) is None


def test_cuts_mean_nothing_on_one_rank_and_may_be_uneven() -> None:
    assert reason("hybrid.cuts-by-stages", hybrid("*|-*-")) is None
    assert reason("layout.layers-by-pp", hybrid("*|-*", pp=2)) is None
    assert reason("layout.layers-by-pp", hybrid("*-*", pp=2)) is not None
