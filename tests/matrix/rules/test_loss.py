from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig, adversarial_mix
from harness.core.packing.options import PackingOptions
from harness.features.prediction.config import MtpConfig
from harness.matrix.rules.table import rejections


@pytest.mark.parametrize(
    ("cp", "per_token", "average", "expected"),
    [
        (1, True, False, set()),
        (2, True, False, set()),
        (1, False, False, set()),
        (2, False, False, {"loss.per-token-with-cp"}),
        (1, True, True, {"loss.no-average-with-per-token"}),
        (2, True, True, {"loss.no-average-with-cp", "loss.no-average-with-per-token"}),
        (1, False, True, set()),
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


def mean_loss(lengths: tuple[int, ...], cp: int, *masked: int) -> CellConfig:
    return CellConfig(
        layout=Layout(cp=cp),
        data_path="reference",
        train=TrainConfig(global_batch=len(lengths), steps=1),
        documents=DocumentsConfig(mode="file", lengths=lengths, masked=masked),
        options=PackingOptions(calculate_per_token_loss=False),
    )


@pytest.mark.parametrize(
    ("lengths", "masked", "uneven"),
    [
        ((4, 8), (), False),
        ((3, 8), (), True),  # slots are split evenly over ranks, tokens are not
        ((4, 3), (1,), False),  # the document with padding does not count
        ((4, 3), (0,), True),
    ],
)
def test_a_mean_over_a_ranks_own_tokens_needs_equal_counts_of_unmasked_tokens(
    lengths: tuple[int, ...], masked: tuple[int, ...], uneven: bool
) -> None:
    """Of four slots, rank 0 has 0 and 3; padding and masked documents do not count."""
    found = {item.rule: item.reason for item in rejections(mean_loss(lengths, 2, *masked))}
    reason = found.get("loss.per-token-with-cp")
    counted = tuple(length for index, length in enumerate(lengths) if index not in masked)
    assert (reason is not None) == uneven
    assert not reason or f"the ranks have {shares_of(counted)} unmasked tokens" in reason
    assert "loss.per-token-with-cp" not in {item.rule for item in rejections(mean_loss(lengths, 1, *masked))}


def shares_of(lengths: tuple[int, ...]) -> str:
    """Unmasked tokens per rank, by hand, for cp 2: outer and inner quarters of documents padded to a multiple of 4."""
    outer = inner = 0
    for length in lengths:
        quarter = -(-length // 4)
        for position in range(length):
            inner += quarter <= position < 3 * quarter
            outer += not quarter <= position < 3 * quarter
    return f"{outer}, {inner}"


def test_smoothed_losses_are_computed_from_the_logits_of_every_tp_rank() -> None:
    def found(**model: Any) -> dict[str, str]:
        train = TrainConfig(global_batch=1, label_smoothing=0.1)
        documents = DocumentsConfig(mode="file", lengths=(8,))
        plain = CellConfig(layout=Layout(), data_path="reference", train=train, documents=documents)
        return {item.rule: item.reason for item in rejections(replace(plain, model=ModelConfig(**model)))}

    assert found() == {}
    assert "which then gets no labels" in found(mtp=MtpConfig())["loss.smoothing-mtp"]
    assert "gathered_logits gathers them" in found(gathered_logits=True)["loss.smoothing-shards"]


@pytest.mark.parametrize("path", ["verl", "nemo_rl", "megatron_rl"])
def test_a_loss_that_upstream_computes_is_not_smoothed(path: str) -> None:
    train = TrainConfig(label_smoothing=0.1)
    config = CellConfig(layout=Layout(), data_path=path, train=train, documents=adversarial_mix(64, 1))
    assert [item.rule for item in rejections(config)] == ["loss.smoothing-path"]


def test_a_rule_can_be_lifted() -> None:
    uneven = mean_loss((3, 8), 2)
    assert [item.rule for item in rejections(uneven)] == ["loss.per-token-with-cp"]
    assert rejections(replace(uneven, lift="loss.per-token-with-cp")) == ()
