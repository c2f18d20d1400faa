"""Records routers at step 0: the experts chosen for real and for padding tokens, the auxiliary losses and z-losses; and
where the oracle follows it the choice of every slot in all steps and evaluations, and what experts drop.

What they are made of is recomputed from the router's logits, so that the judge can check upstream's losses against its
own arithmetic. Wraps methods of megatron.core.transformer.moe.router.TopKRouter, 0.12 to 0.19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import megatron.core.transformer.moe.router as upstream_router
import torch
from torch import Tensor

from harness.core.cell.modelled import follows_choices
from harness.core.packing.arithmetic import PAD
from harness.core.run.records import ChoiceSeen, ExpertShare, RouterSeen
from harness.features.experts.config import MoeConfig
from harness.features.recompute.node_recompute import recomputing
from harness.probe.hooks.layers import PassState
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext


class RouterRecorder:
    """Wraps methods of each router, and the function that computes z-losses; changes no values."""

    def __init__(self, routers: dict[int, Any], context: RankContext, state: PassState, recorder: Recorder) -> None:
        """`routers`: by the global number of their layer."""
        self.context, self.state, self.recorder = context, state, recorder
        self.seen: RouterSeen | None = None  # of the current call of `routing`
        self.follows = follows_choices(context.config)
        self.chosen: Tensor | None = None  # [tokens, experts] bool, of the current call: before tokens are dropped
        for number, router in routers.items():
            router.routing = self._routing(number, router.routing)
            if hasattr(router, "attach_and_log_load_balancing_loss"):
                router.attach_and_log_load_balancing_loss = self._attach(router.attach_and_log_load_balancing_loss)
            else:
                router.apply_load_balancing_loss = self._attach_computed(router.apply_load_balancing_loss)
            router.apply_z_loss = self._apply_z_loss(router.apply_z_loss)
        if hasattr(upstream_router, "apply_router_token_dropping"):
            upstream_router.apply_router_token_dropping = self._dropping(upstream_router.apply_router_token_dropping)
        elif hasattr(upstream_router, "topk_softmax_with_capacity"):  # before core_v0.14
            upstream_router.topk_softmax_with_capacity = self._choosing(upstream_router.topk_softmax_with_capacity)
        if hasattr(upstream_router, "z_loss_func"):  # not on branch dev
            upstream_router.z_loss_func = self._z_loss(upstream_router.z_loss_func)

    def _routing(self, layer: int, upstream: Callable[..., Any]) -> Callable[..., Any]:
        def routing(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
            recomputed = recomputing()
            # Detached: whatever is computed from logits here must not become a part of the graph.
            self.seen = self._seen_before(layer) if recomputed else self._shares(layer, logits.detach())
            self.chosen = None
            routed = upstream(logits, *args, **kwargs)
            if self.follows and not recomputed and self.state.leg in ("training", "evaluation"):
                self._record_choice(layer, logits.detach(), _map_of(routed))
            if self.seen is not None and not recomputed:
                moe = self.context.config.model.moe
                if moe is not None and moe.capacity_factor is not None:
                    self.seen.kept = [int(value) for value in _map_of(routed).sum(0)]
                self.recorder.record.routers.append(self.seen)
            return routed

        return routing

    def _dropping(self, upstream: Callable[..., Any]) -> Callable[..., Any]:
        def dropping(probs: Tensor, routing_map: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.chosen = routing_map.bool()
            return upstream(probs, routing_map, *args, **kwargs)

        return dropping

    def _choosing(self, upstream: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the one function that chooses and drops; without a capacity it only chooses."""

        def choosing(logits: Tensor, *args: Any, capacity_factor: float | None = None, **kwargs: Any) -> Any:
            if capacity_factor is not None:
                # Called a second time without the capacity, which this release applies inside.
                self.chosen = upstream(logits.detach(), *args, **kwargs)[1].bool()
            return upstream(logits, *args, capacity_factor=capacity_factor, **kwargs)

        return choosing

    def _record_choice(self, layer: int, logits: Tensor, routed: Tensor) -> None:
        """Record which experts each slot gets; `routed` [tokens, experts] bool: without a capacity exactly k."""
        moe, at = self.context.config.model.moe, self.state
        assert moe is not None and at.slots is not None
        slots, taken = self._slots(at.slots, logits), None
        if slots is None:
            return  # wrong shape; the metadata lane reports it
        order = slots.argsort().to(routed.device)
        if moe.capacity_factor is not None:
            if self.chosen is None:
                return  # dropped by a function with another name; the judge says that choices are missing
            routed, taken = self.chosen, routed[order]
        chosen = routed[order].int().topk(moe.topk, 1).indices
        scores = routing_scores(moe, logits.flatten(0, 1)[order])
        # Only the auxiliary loss counts preferences; without one they would double the record.
        preferred = scores.topk(moe.topk, 1).indices if moe.balanced else None
        self.recorder.choice(
            ChoiceSeen(step=at.data_step, layer=layer, micro_batch=at.micro_batch, experts=[]), chosen, preferred, taken
        )

    def _attach(self, upstream: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attach(activation: Tensor, coefficient: float, aux_loss: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            attached = upstream(activation, coefficient, aux_loss, *args, **kwargs)
            if self.seen is not None:
                self.seen.aux_loss = float(aux_loss)
                self.seen.aux_weighted = _weighted(attached)
            return attached

        return attach

    def _attach_computed(self, upstream: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Wrap the one function that, before core_v0.14, computes the auxiliary loss by another that it gets, and
        attaches it.
        """

        def attach(activation: Tensor, load_balancing_loss_func: Callable[..., Tensor]) -> Tensor:
            computed: list[Tensor] = []

            def loss(**kwargs: Any) -> Tensor:
                computed.append(load_balancing_loss_func(**kwargs))
                return computed[-1]

            attached = upstream(activation, loss)
            if self.seen is not None and computed:
                self.seen.aux_loss = float(computed[-1])
                self.seen.aux_weighted = _weighted(attached)
            return attached

        return attach

    def _z_loss(self, upstream: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def z_loss(*args: Any, **kwargs: Any) -> Tensor:
            loss = upstream(*args, **kwargs)
            if self.seen is not None:
                self.seen.z_loss = float(loss)
            return loss

        return z_loss

    def _apply_z_loss(self, upstream: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def apply(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            attached = upstream(logits, *args, **kwargs)
            # Upstream returns the logits themselves where there is no z-loss.
            if self.seen is not None and attached is not logits:
                self.seen.z_weighted = _weighted(attached)
            return attached

        return apply

    def _seen_before(self, layer: int) -> RouterSeen | None:
        """Return the entry of the recomputed forward: upstream adds auxiliary losses only now, with autograd on."""
        if not self.state.first_step:
            return None
        of_layer = (seen for seen in self.recorder.record.routers if seen.layer == layer)
        return next((seen for seen in of_layer if seen.micro_batch == self.state.micro_batch), None)

    def _shares(self, layer: int, logits: Tensor) -> RouterSeen | None:
        """Return the expert shares of this rank's logits, [s, b, experts] or reshaped as in _slots.

        None after step 0.
        """
        if not self.state.first_step:
            return None
        moe = self.context.config.model.moe
        owners, rows = self.state.owners, self.state.rows
        assert moe is not None and owners is not None and rows is not None
        padding, row = self._slots(owners[..., 0] == PAD, logits), self._slots(rows, logits)
        if padding is None or row is None:
            return None  # wrong shape; the metadata lane reports it
        scores = routing_scores(moe, logits.flatten(0, 1))
        chosen = torch.zeros_like(scores).scatter(1, scores.topk(moe.topk, dim=1).indices, 1.0)
        squares = torch.logsumexp(logits.flatten(0, 1).double(), -1).square() if moe.z_loss_coeff else None
        count = self.context.config.micro_batch_size

        def shares(mask: Tensor) -> list[ExpertShare]:
            parts = [mask & (row == number) for number in range(count)]
            return [
                ExpertShare(
                    tokens=int(part.sum()),
                    counts=[int(value) for value in chosen[part].sum(0)],
                    scores=[float(value) for value in scores[part].double().sum(0)],
                    squares=None if squares is None else float(squares[part].sum()),
                )
                for part in parts
            ]

        return RouterSeen(
            layer=layer, micro_batch=self.state.micro_batch, real=shares(~padding), padding=shares(padding)
        )

    def _slots(self, values: Tensor, logits: Tensor) -> Tensor | None:
        """Return `values` as [rows, local slots], flattened in the order of the logits; None when shapes do not match.

        With sequence parallelism the logits are this rank's contiguous share. From 0.19 on, upstream splits the merged
        row of a packed micro-batch into rows again: [slots per row, rows].
        """
        stream = values.transpose(0, 1)  # [s, b]
        layout = self.context.config.layout
        if layout.sp:
            stream = stream.chunk(layout.tp, 0)[self.context.place.tp]
        if stream.shape != logits.shape[:2]:
            if stream.numel() != logits.shape[:2].numel() or stream.shape[1] != 1:
                return None
            stream = stream.view(logits.shape[1], logits.shape[0]).transpose(0, 1)
        return stream.flatten()


def _map_of(routed: Sequence[Tensor]) -> Tensor:
    """Return [tokens, experts]: which experts take a token, among what `routing` returns.

    The other is their weights.
    """
    # By kind: releases differ in which of the two comes first, and in whether the map is bool or int.
    return next(returned for returned in routed if not returned.is_floating_point()).bool()


def _weighted(attached: Tensor) -> float:
    """Return the loss that upstream's MoEAuxLossAutoScaler has attached to a tensor, and saved for backward."""
    (loss,) = attached.grad_fn.saved_tensors  # type: ignore[union-attr]
    return float(loss)


def aux_scale() -> float | None:
    """Return the scale that the schedule set for auxiliary losses (MoEAuxLossAutoScaler); None when it set none."""
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler

    scale = MoEAuxLossAutoScaler.main_loss_backward_scale
    return None if scale is None else float(scale)


def routing_scores(moe: MoeConfig, logits: Tensor) -> Tensor:
    """Return [tokens, experts] float32: scores that add up to 1 for each token.

    As moe_utils.compute_routing_scores_for_aux_loss defines them.
    """
    if moe.score_function == "softmax":
        return torch.softmax(logits.float(), -1)
    scores = torch.sigmoid(logits.float())
    return scores / scores.sum(-1, keepdim=True)


# The biases by which routers even out the load of experts. Upstream changes them when it finalises gradients
# (megatron.core.distributed.finalize_model_grads, 0.14 to 0.19), and keeps them in a buffer of each router.
def reset_routers(chunks: Iterable[Any]) -> None:
    """Set what routers keep between passes to its initial value: biases of experts, and the counts of tokens from which
    these and `global_aux_loss` follow.

    Upstream forgets the counts when it finalises gradients, which a pass without a backward does not.
    """
    with torch.no_grad():
        for chunk in chunks:
            for router in chunk.modules():
                for buffer in ("expert_bias", "local_tokens_per_expert"):
                    if isinstance(getattr(router, buffer, None), Tensor):
                        getattr(router, buffer).zero_()
                if hasattr(router, "reset_global_aux_loss_tracker"):
                    router.reset_global_aux_loss_tracker()
