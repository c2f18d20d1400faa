from __future__ import annotations

import pytest

from harness.plan.rules.table import rejections
from harness.words.cell import CellConfig
from harness.words.documents import adversarial_mix
from harness.words.layout import Layout
from harness.words.packing_options import PackingOptions


@pytest.mark.parametrize(
    ("cp", "per_token", "average", "expected"),
    [
        (1, True, False, set()),
        (2, True, False, set()),
        (1, False, False, {"loss.per-token-only"}),
        (2, False, False, {"loss.per-token-with-cp", "loss.per-token-only"}),
        (1, True, True, {"loss.no-average-with-per-token"}),
        (2, True, True, {"loss.no-average-with-cp", "loss.no-average-with-per-token"}),
        (1, False, True, {"loss.per-token-only"}),
    ],
)
def test_the_loss_is_summed_per_token_and_never_averaged_in_the_collective(
    cp: int, per_token: bool, average: bool, expected: set[str]
) -> None:
    config = CellConfig(
        layout=Layout(cp=cp),
        data_path="sft",
        documents=adversarial_mix(64, cp),
        options=PackingOptions(calculate_per_token_loss=per_token, average_in_collective=average),
    )
    assert {item.rule for item in rejections(config)} == expected


def test_the_reason_shows_the_sizes() -> None:
    options = PackingOptions(calculate_per_token_loss=False, average_in_collective=True)
    config = CellConfig(layout=Layout(cp=2, dp=2), data_path="sft", documents=adversarial_mix(64, 2), options=options)
    found = {item.rule: item.reason for item in rejections(config)}
    assert "cp 2 splits each document over 2 ranks" in found["loss.per-token-with-cp"]
    assert "cp 2 x dp 2 ranks" in found["loss.no-average-with-cp"]
