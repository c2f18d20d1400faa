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


def reset_routers(chunks: Iterable[Any]) -> None:
    """Set what routers keep between passes to its initial value: biases of experts, and the counts of tokens from which
    these and `global_aux_loss` follow.

    Upstream forgets the counts when it finalises gradients, which a pass without a backward does not.
    """
    with torch.no_grad():
        for chunk in chunks:
            for router in chunk.modules():
                for kept in ("expert_bias", "local_tokens_per_expert"):
                    if isinstance(getattr(router, kept, None), Tensor):
                        getattr(router, kept).zero_()
                if hasattr(router, "reset_global_aux_loss_tracker"):
                    router.reset_global_aux_loss_tracker()


def _biases(chunks: Iterable[Any], layers: int) -> Iterator[tuple[int, Tensor]]:
    for chunk in chunks:
        for layer, router in routers_of(unwrap(chunk), layers).items():
            if router.config.moe_router_enable_expert_bias:
                yield layer, router.expert_bias
