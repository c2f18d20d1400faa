from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import DocumentLoss
from harness.probe.hooks.layers import PassState, PredictionRecorder
from tests.runtime.fake_gpu import on_gpu


def test_a_tensor_of_the_gpu_is_not_mixed_with_one_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="two devices"):
        torch.arange(3)[on_gpu(torch.tensor([True, False, True]))]
    assert type(on_gpu(torch.ones(2)).double().cpu()) is torch.Tensor


def test_losses_of_a_prediction_depth_on_a_gpu_are_counted_per_document() -> None:
    chunk = SimpleNamespace(
        compute_language_model_loss=None, output_layer=SimpleNamespace(register_forward_pre_hook=lambda hook, **_: None)
    )
    documents = torch.tensor([[4, 4, 9, 9, PAD]])
    state = PassState(owners=torch.stack([documents, torch.arange(5)[None]], 2), micro_batch=3)
    watch = PredictionRecorder(chunk, 1, state, recorder=None)  # type: ignore[arg-type]
    losses, weighted = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]]), torch.tensor([[0.5, 0.5, 0.5, 0.0, 0.0]])
    seen = watch._seen(1, on_gpu(losses), on_gpu(weighted))
    assert seen.documents == {4: DocumentLoss(loss_sum=3.0, tokens=2), 9: DocumentLoss(loss_sum=4.0, tokens=1)}
    assert (seen.depth, seen.micro_batch) == (1, 3)


class _Scaled(torch.autograd.Function):
    """As upstream's MTPLossAutoScaler: it keeps the loss of a depth in the graph of the main head's input."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(loss)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


class _Head(torch.nn.Module):
    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        return input_


@pytest.mark.parametrize("by_keyword", [False, True])
def test_the_main_head_may_get_its_input_by_position_or_by_keyword(by_keyword: bool) -> None:
    """Branch dev of Megatron-LM passes it by keyword."""
    head, losses = _Head(), torch.tensor([[1.0, 2.0]])
    chunk = SimpleNamespace(compute_language_model_loss=lambda labels, logits: losses, output_layer=head)
    documents = torch.tensor([[4, 9]])
    state = PassState(owners=torch.stack([documents, torch.arange(2)[None]], 2))
    record = SimpleNamespace(mtp=[])
    PredictionRecorder(chunk, 1, state, SimpleNamespace(record=record))  # type: ignore[arg-type]
    chunk.compute_language_model_loss(None, head(torch.zeros(1)))
    hidden = _Scaled.apply(torch.zeros(2, requires_grad=True), losses)
    _ = head(input_=hidden) if by_keyword else head(hidden)
    (seen,) = record.mtp
    assert seen.documents == {4: DocumentLoss(loss_sum=1.0, tokens=1), 9: DocumentLoss(loss_sum=2.0, tokens=1)}
