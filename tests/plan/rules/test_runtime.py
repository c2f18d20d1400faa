"""Rules of recomputation and of process groups that are passed explicitly."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import adversarial_mix
from harness.plan.rules.table import rejections


def found(layout: Layout, **more: Any) -> dict[str, str]:
    kept: dict[str, Any] = {"data_path": "reference", "documents": adversarial_mix(64, 1)} | more
    return {item.rule: item.reason for item in rejections(CellConfig(layout=layout, **kept))}


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Layout(tp=2), None),
        (Layout(), "and tp is 1; use recompute: full"),
        (Layout(tp=2, sp=True), "over tp 2, and with sp it is split already"),
    ],
)
def test_saved_inputs_are_split_only_where_every_rank_has_the_whole(layout: Layout, reason: str | None) -> None:
    reasons = found(layout, recompute="full-split")
    assert (reason is None and not reasons) or str(reason) in reasons["recompute.split"]


@pytest.mark.parametrize(
    ("layout", "rule", "reason"),
    [
        (Layout(tp=2, dp=2), "", ""),
        (Layout(tp=2), "groups.other-ranks", "and they are 2 and 1"),
        (Layout(dp=2), "groups.other-ranks", "and they are 1 and 2"),
        (Layout(tp=2, dp=2, pp=2), "groups.stages", "and pp is 2"),
        (Layout(tp=2, dp=2, pp=2, vpp=2), "groups.stages", "and pp is 2"),
    ],
)
def test_explicit_groups_differ_from_the_global_ones(layout: Layout, rule: str, reason: str) -> None:
    reasons = found(layout, groups="explicit")
    assert list(reasons) == [rule] * bool(rule)
    assert not rule or reason in reasons[rule]


def test_explicit_groups_are_passed_by_the_harness_alone() -> None:
    more = {"data_path": "sft", "trainer": "megatron"}
    assert "groups.trainer" in found(Layout(tp=2, dp=2), groups="explicit", **more)
