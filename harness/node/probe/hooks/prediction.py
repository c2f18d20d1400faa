"""Records multi-token prediction at step 0: its loss per document, over the tokens that upstream counts.

The losses are what upstream's compute_language_model_loss returns for the labels that upstream rolled. Which tokens
count is read from what upstream saves for backward (MTPLossAutoScaler; megatron-core 0.14 to 0.19).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.run.records import DocumentLoss, MtpSeen
from harness.node.probe.hooks.layers import PassState, first_input
from harness.node.recording.recorder import Recorder


class PredictionRecorder:
    """Wraps the loss and hooks the output layer of the last stage's chunk; changes no values."""

    def __init__(self, chunk: Any, depths: int, state: PassState, recorder: Recorder) -> None:
        self.depths, self.state, self.recorder = depths, state, recorder
        self.losses: list[Tensor] = []  # per depth, [rows, local slots] each
        self.main_next = False  # whether the next loss is the main head's
        self.upstream = chunk.compute_language_model_loss
        chunk.compute_language_model_loss = self._loss
        chunk.output_layer.register_forward_pre_hook(self._before_output, with_kwargs=True)

    def _loss(self, labels: Tensor, logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = self.upstream(labels, logits, *args, **kwargs)
        if not self.main_next:
            self.losses.append(loss.detach())
        self.main_next = False
        return loss

    def _before_output(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record all depths before the main head, whose input's autograd graph holds their losses, last depth first."""
        if len(self.losses) < self.depths:
            return
        losses, self.losses, self.main_next = self.losses, [], True
        if not self.state.first_step:
            return
        node = first_input(args, kwargs).grad_fn
        for depth in range(self.depths, 0, -1):
            (weighted,) = node.saved_tensors
            self.recorder.record.mtp.append(self._seen(depth, losses[depth - 1], weighted))
            node = node.next_functions[0][0]

    def _seen(self, depth: int, losses: Tensor, weighted: Tensor) -> MtpSeen:
        assert self.state.owners is not None
        documents = self.state.owners[..., 0].flatten()
        counted = weighted.detach().cpu().flatten() != 0  # owners are on the CPU
        values = losses.cpu().flatten().double()
        seen = {}
        for document in torch.unique(documents[counted]).tolist():
            mine = counted & (documents == document)
            seen[int(document)] = DocumentLoss(loss_sum=float(values[mine].sum()), tokens=int(mine.sum()))
        return MtpSeen(depth=depth, micro_batch=self.state.micro_batch, documents=seen)
