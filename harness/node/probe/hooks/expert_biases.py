"""The biases by which routers even out the load of experts. Upstream changes them when it finalises gradients
(megatron.core.distributed.finalize_model_grads, 0.14 to 0.19), and keeps them in a buffer of each router.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from harness.core.run.records import ExpertBiasSeen
from harness.node.probe.model.gpt import unwrap
from harness.node.probe.model.parts import routers_of

if TYPE_CHECKING:
    from harness.node.probe.observer import Observer


def record_biases(observer: Observer, step: int) -> None:
    """Record the biases after the update of a step; nothing for models without them."""
    for layer, bias in _biases(observer.chunks, observer.context.config.model.layers):
        values = [float(value) for value in bias.tolist()]
        observer.recorder.record.expert_biases.append(ExpertBiasSeen(step=step, layer=layer, values=values))


def reset_routers(chunks: Iterable[Any], layers: int) -> None:
    """Set what routers keep between passes to its initial value: biases, and the counts of `global_aux_loss`.

    Upstream forgets the counts when it finalises gradients, which a pass without a backward does not. `layers`: of the
    model, without prediction layers.
    """
    with torch.no_grad():
        for _, bias in _biases(chunks, layers):
            bias.zero_()
    for chunk in chunks:
        for module in chunk.modules():
            if hasattr(module, "reset_global_aux_loss_tracker"):
                module.reset_global_aux_loss_tracker()


def _biases(chunks: Iterable[Any], layers: int) -> Iterator[tuple[int, Tensor]]:
    for chunk in chunks:
        for layer, router in routers_of(unwrap(chunk), layers).items():
            bias = getattr(router, "expert_bias", None)
            if bias is not None:
                yield layer, bias
