from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import DocumentLoss
from harness.node.probe.hooks.layers import PassState
from harness.node.probe.hooks.prediction import PredictionRecorder
from tests.node.fake_gpu import on_gpu


def test_a_tensor_of_the_gpu_is_not_mixed_with_one_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="two devices"):
        torch.arange(3)[on_gpu(torch.tensor([True, False, True]))]
    assert type(on_gpu(torch.ones(2)).double().cpu()) is torch.Tensor


def test_losses_of_a_prediction_depth_on_a_gpu_are_counted_per_document() -> None:
    chunk = SimpleNamespace(
        compute_language_model_loss=None, output_layer=SimpleNamespace(register_forward_pre_hook=lambda hook: None)
    )
    documents = torch.tensor([[4, 4, 9, 9, PAD]])
    state = PassState(owners=torch.stack([documents, torch.arange(5)[None]], 2), micro_batch=3)
    watch = PredictionRecorder(chunk, 1, state, recorder=None)  # type: ignore[arg-type]
    losses, weighted = torch.tensor([[1.0, 2.0, 4.0, 8.0, 16.0]]), torch.tensor([[0.5, 0.5, 0.5, 0.0, 0.0]])
    seen = watch._seen(1, on_gpu(losses), on_gpu(weighted))
    assert seen.documents == {4: DocumentLoss(loss_sum=3.0, tokens=2), 9: DocumentLoss(loss_sum=4.0, tokens=1)}
    assert (seen.depth, seen.micro_batch) == (1, 3)
