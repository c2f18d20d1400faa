"""Rewriting leg: every layer gets a known input and output gradient, whatever the other modules computed.

Both are drawn from the seed and global indices (layer, document, position, hidden unit) and split like the real ones.
So they do not depend on layout and packing, and no error propagates between modules. A module whose results differ from
the same leg of the control is itself faulty (TTrace, arXiv 2506.09280). If every context rank returns the loss of
whole rows, right gradients are cp times those of the control until Megatron divides them, and so are the drawn ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.core.run.tensor_records import ActivationSeen
from harness.node.data_paths.base import RankContext
from harness.node.probe.hooks.fingerprints import document_fingerprints, merge
from harness.node.probe.hooks.layers import PassState, local_owners
from harness.node.probe.model.hybrid import final_norm, numbered_layers
from harness.oracle.drawing import INITIAL_STD, draw


class Rewrite(torch.autograd.Function):
    """Forward replaces the input by `value`; backward passes the gradient to `show` and returns `gradient` instead."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, value: Tensor, gradient: Tensor, show: Callable[[Tensor], None]) -> Tensor:
        ctx.gradient, ctx.show = gradient, show
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.show(grads[0])
        return ctx.gradient, None, None, None


class Rewriter:
    """Hooks before every layer and the final norm that act while `lengths` (document -> tokens) is set."""

    def __init__(self, chunks: list[Any], context: RankContext, state: PassState) -> None:
        self.context, self.state = context, state
        self.lengths: dict[int, int] | None = None
        self.gradients: dict[int, ActivationSeen] = {}
        config = context.config
        self.scale = config.layout.cp if config.path.loss_on_every_context_rank else 1
        last = config.model.layers + 1
        for chunk in chunks:
            modules = [(layer.number, layer.whole) for layer in numbered_layers(chunk)]
            final = final_norm(chunk)
            for number, module in modules if final is None else [*modules, (last, final)]:
                module.register_forward_pre_hook(self._hook(number), with_kwargs=True)

    def drain(self) -> list[ActivationSeen]:
        """Fingerprints of the modules' input gradients since the last call, ordered by module."""
        seen = [self.gradients[module] for module in sorted(self.gradients)]
        self.gradients = {}
        return seen

    def _hook(self, number: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> Any:
            if self.lengths is None:
                return None
            if args:
                return (self._rewritten(number, args[0]), *args[1:]), kwargs
            name = next(iter(kwargs))
            return args, kwargs | {name: self._rewritten(number, kwargs[name])}

        return hook

    def _rewritten(self, number: int, hidden: Tensor) -> Tensor:
        """The input that replaces a module's input, hidden [s, b, h]."""
        owners = local_owners(self.state, self.context)
        if owners.shape[:2] != hidden.shape[:2]:
            return hidden  # wrong shape; the metadata lane reports it
        value = self._drawn("input", number, owners, hidden) * INITIAL_STD
        gradient = self._drawn("gradient", number - 1, owners, hidden) * self.scale
        # Only tp rank 0 records values that are replicated over tp.
        records = self.context.place.tp == 0 or self.context.config.layout.sp
        show = partial(self._show, number, owners) if records else _nothing
        return Rewrite.apply(hidden, value, gradient, show)  # type: ignore[no-any-return]

    def _drawn(self, kind: str, module: int, owners: Tensor, like: Tensor) -> Tensor:
        """Standard normal values for real tokens, 0 for padding, with the shape, dtype and device of `like`."""
        assert self.lengths is not None
        flat = owners.flatten(0, 1)
        drawn = torch.zeros(len(flat), like.shape[-1])
        for document in set(flat[:, 0].tolist()) - {PAD}:
            mine = flat[:, 0] == document
            shape = (self.lengths[document], like.shape[-1])
            table = draw(f"rewriting-{kind}", f"{module}/{document}", shape, self.context.config.train.seed)
            drawn[mine] = table[flat[mine, 1]]
        return drawn.view_as(like).to(like.device, like.dtype)

    def _show(self, number: int, owners: Tensor, grad: Tensor) -> None:
        config = self.context.config
        seen = self.gradients.setdefault(number, ActivationSeen(layer=number, documents={}))
        merge(
            seen.documents,
            document_fingerprints(
                (grad / self.scale).flatten(0, 1),
                owners.flatten(0, 1),
                length=config.train.seq_length,
                seed=config.train.seed,
            ),
        )


def _nothing(grad: Tensor) -> None:
    pass
