"""What the losses of micro-batches are divided by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from harness.oracle.fields import Experts, Model
from harness.oracle.loss import Divisors, MicroLoss, cross_entropy, micro_loss, share_of_step
from harness.oracle.model import forward
from harness.oracle.rows import Stream
from harness.oracle.weights import initial_weights
from tests.oracle.streams import stream

MODEL = Model(layers=1, hidden=4, vocab=9, heads=2, groups=1, head=2, ffn=3, predictions=2, prediction_weight=0.3)
BY = Divisors(labels=10, counted=10, micro_batches=7)
ROUTED = Experts(count=3, chosen=2, ffn=2, balance="aux_loss", balance_weight=0.5, z_weight=0.1)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def masked(*mask: int) -> Stream:
    """A document of as many slots."""
    return replace(stream(9, (len(mask),)), mask=numbers(*mask))


def part(rows: Stream, *replicas: Stream) -> MicroLoss:
    """Losses of 6 on three labels, of 4 and 5 on those two and one that prediction layers count, and of routers."""
    return MicroLoss(
        losses=numbers(1, 2, 3, 0),
        predictions=[numbers(1, 3, 0, 0), numbers(5, 0, 0, 0)],
        predicted=[numbers(1, 1, 0, 0), numbers(1, 0, 0, 0)],
        balance=[numbers(0.25)[0], numbers(0.5)[0]],
        z=[numbers(2)[0]],
        balanced=list(replicas) or [rows],
    )


def test_per_token_everything_counts_as_many_tokens_as_it_is_over() -> None:
    """Of 10 tokens: 6, prediction layers as 3 labels, routers as 4 slots."""
    rows = masked(1, 1, 1, 0)
    own = share_of_step(part(rows), rows, MODEL, BY)
    assert float(own) == pytest.approx((6 + 3 * 0.15 * (4 / 2 + 5) + 4 * (0.75 + 2)) / 10)


def test_where_the_loss_returns_all_tokens_routers_are_divided_by_these() -> None:
    rows = masked(1, 1, 1, 0)
    own = share_of_step(part(rows), rows, MODEL, replace(BY, counted=20))
    assert float(own) == pytest.approx(6 / 10 + (3 * 0.15 * (4 / 2 + 5) + 4 * (0.75 + 2)) / 20)


def test_a_mean_over_the_step_is_no_mean_of_means() -> None:
    rows = masked(1, 1, 1, 0)
    own = share_of_step(part(rows), rows, replace(MODEL, per_token=False), replace(BY, step_mean=True))
    assert float(own) == pytest.approx(6 / 10 + (0.15 * (4 / 2 + 5) + 0.75 + 2) / 7)


def test_otherwise_every_micro_batch_is_a_mean_that_counts_alike() -> None:
    rows = masked(1, 1, 1, 0)
    own = share_of_step(part(rows), rows, replace(MODEL, per_token=False), BY)
    assert float(own) == pytest.approx((6 / 3 + 0.15 * (4 / 2 + 5) + 0.75 + 2) / 7)


def test_shares_of_a_loss_over_all_replicas_count_the_slots_of_all() -> None:
    rows, other = masked(1, 1, 1, 0), stream(9, (6,))
    everywhere = part(rows, rows, other)
    own = share_of_step(everywhere, rows, MODEL, BY)
    assert float(own) == pytest.approx((6 + 3 * 0.15 * 7 + 10 * 0.75 + 4 * 2) / 10)
    own = share_of_step(everywhere, rows, replace(MODEL, per_token=False), BY)
    assert float(own) == pytest.approx((2 + 0.15 * 7 + 2 * 0.75 + 2) / 7)


def test_a_micro_batch_without_labels_that_count_has_no_loss_and_divides_by_nothing() -> None:
    rows = masked(0, 0, 0, 0)
    empty = replace(part(rows), losses=numbers(0, 0, 0, 0), predictions=[], predicted=[], balance=[], z=[])
    for per_token in (True, False):
        own = share_of_step(
            empty, rows, replace(MODEL, per_token=per_token), Divisors(labels=0, counted=0, micro_batches=1)
        )
        assert float(own) == 0.0


@pytest.mark.parametrize("per_token", [True, False])
def test_one_label_that_counts_is_divided_by_one(per_token: bool) -> None:
    rows = masked(1, 0, 0, 0)
    one = replace(part(rows), losses=numbers(2, 0, 0, 0), balance=[], z=[])
    by = Divisors(labels=1, counted=1, micro_batches=1)
    own = share_of_step(one, rows, replace(MODEL, per_token=per_token), by)
    assert float(own) == pytest.approx(2 + 0.15 * (4 / 2 + 5))


def test_a_single_prediction_layer_has_the_whole_weight() -> None:
    rows = masked(1, 1, 1, 0)
    single = replace(part(rows), predictions=[numbers(1, 3, 0, 0)], predicted=[numbers(1, 1, 0, 0)], balance=[], z=[])
    own = share_of_step(single, rows, replace(MODEL, predictions=1), BY)
    assert float(own) == pytest.approx((6 + 3 * 0.3 * 4 / 2) / 10)


def test_an_evaluation_has_no_losses_of_routers() -> None:
    model, rows = replace(MODEL, experts=ROUTED), stream(9, (4,))
    zeros = {number: torch.zeros(3, dtype=torch.float64) for number in range(1, 4)}
    seen = micro_loss(forward(initial_weights(model, 0, torch.float64), model, rows, zeros), rows, model, 0.0, [], [])
    assert (seen.balance, seen.z) == ([], [])


def test_a_router_without_balance_has_its_z_loss_alone() -> None:
    model, rows = replace(MODEL, experts=replace(ROUTED, balance="none")), stream(9, (4,))
    zeros = {number: torch.zeros(3, dtype=torch.float64) for number in range(1, 4)}
    passed = forward(initial_weights(model, 0, torch.float64), model, rows, zeros)
    seen = micro_loss(passed, rows, model, 0.0, [(rows, passed)], [[] for _ in passed.routed])
    assert [loss.item() for loss in seen.balance] == [0.0] * 3
    assert all(loss.item() > 0 for loss in seen.z)


def test_a_loss_over_all_replicas_is_known_as_one() -> None:
    model = replace(MODEL, experts=replace(ROUTED, balance="global_aux_loss"))
    rows = [stream(9, (4,)), stream(9, (6,), seed=2)]
    weights = initial_weights(model, 0, torch.float64)
    zeros = {number: torch.zeros(3, dtype=torch.float64) for number in range(1, 4)}
    together = [(one, forward(weights, model, one, zeros)) for one in rows]
    seen = micro_loss(together[0][1], rows[0], model, 0.0, together, [[] for _ in range(3)])
    assert seen.balanced == rows
    alone = replace(model, experts=ROUTED)
    assert micro_loss(together[0][1], rows[0], alone, 0.0, together, [[] for _ in range(3)]).balanced == rows[:1]


def test_masked_labels_have_no_loss_and_prediction_layers_mask_the_labels_ahead() -> None:
    rows = replace(stream(9, (3, 2)), mask=numbers(1, 0, 1, 1, 1))
    weights = initial_weights(MODEL, 0, torch.float64)
    passed = forward(weights, MODEL, rows, {})
    seen = micro_loss(passed, rows, MODEL, 0.2, [(rows, passed)], [])
    smoothed = F.cross_entropy(passed.logits, rows.labels, reduction="none", label_smoothing=0.2 * 9 / 8) * rows.mask
    torch.testing.assert_close(seen.losses, smoothed)
    assert (seen.losses != 0).tolist() == [True, False, True, True, True]
    assert [counted.tolist() for counted in seen.predicted] == [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]]
    right = F.cross_entropy(passed.predictions[0], rows.shifted(rows.labels), reduction="none") * seen.predicted[0]
    torch.testing.assert_close(seen.predictions[0], right)


def test_losses_of_a_bf16_model_are_float32() -> None:
    rows = stream(9, (4,))
    passed = forward(initial_weights(MODEL, 0, torch.bfloat16), MODEL, rows, {})
    assert micro_loss(passed, rows, MODEL, 0.0, [], []).losses.dtype == torch.float32


def test_smoothing_is_that_of_torch() -> None:
    """Which gives s / v to every token, the label too; Megatron s / (v - 1) to the others."""
    logits, labels = drawn(6, 9) * 2, torch.arange(6)
    right = F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.2 * 9 / 8)
    torch.testing.assert_close(cross_entropy(logits, labels, 0.2), right)
    torch.testing.assert_close(cross_entropy(logits, labels), F.cross_entropy(logits, labels, reduction="none"))
