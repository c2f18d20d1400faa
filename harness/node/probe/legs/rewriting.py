"""Rewriting leg: every layer gets a right input, and a right gradient of its output, whatever came before it.

Both are drawn from the seed and global indices (layer, document, position, hidden unit) and cut like the real ones, so
they are the same whatever the layout and packing, and no error can travel. A module that still differs from the
reference's same leg is faulty itself (TTrace, arXiv 2506.09280).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import ActivationSeen
from harness.node.data_paths.base import RankContext
from harness.node.probe.hooks.fingerprints import document_fingerprints, merge
from harness.node.probe.hooks.witness import Position, local_owners
from harness.node.probe.weights import INITIAL_STD, draw


class Rewrite(torch.autograd.Function):
    """Forward puts `value` in the place of the input; backward shows the gradient and passes another on."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, value: Tensor, gradient: Tensor, show: Callable[[Tensor], None]) -> Tensor:
        ctx.gradient, ctx.show = gradient, show
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        ctx.show(grads[0])
        return ctx.gradient, None, None, None


class Rewriter:
    """Hooks before every layer and before what follows the last; they act while the documents' lengths are given."""

    def __init__(self, chunks: list[Any], context: RankContext, position: Position) -> None:
        self.context, self.position = context, position
        self.lengths: dict[int, int] | None = None
        self.gradients: dict[int, ActivationSeen] = {}
        last = context.config.model.layers + 1
        for chunk in chunks:
            modules = [(layer.layer_number, layer) for layer in chunk.decoder.layers]
            final = getattr(chunk.decoder, "final_layernorm", None)
            for number, module in modules if final is None else [*modules, (last, final)]:
                module.register_forward_pre_hook(self._hook(number), with_kwargs=True)

    def taken(self) -> list[ActivationSeen]:
        """Fingerprints of the gradients of the modules' inputs since the last call, by module."""
        seen = [self.gradients[module] for module in sorted(self.gradients)]
        self.gradients = {}
        return seen

    def _hook(self, number: int) -> Any:
        def hook(module: Any, args: Any, kwargs: Any) -> Any:
            if self.lengths is None:
                return None
            if args:
                return (self._rewritten(number, args[0]), *args[1:]), kwargs
            return args, kwargs | {"hidden_states": self._rewritten(number, kwargs["hidden_states"])}

        return hook

    def _rewritten(self, number: int, hidden: Tensor) -> Tensor:
        """hidden [s, b, h], the input of a module."""
        owners = local_owners(self.position, self.context)
        if owners.shape[:2] != hidden.shape[:2]:
            return hidden  # the data path delivered another shape; the metadata lane says so
        value = self._drawn("input", number, owners, hidden) * INITIAL_STD
        gradient = self._drawn("gradient", number - 1, owners, hidden)
        # What another rank has too is shown by tensor-parallel rank 0 alone.
        speaks = self.context.place.tp == 0 or self.context.config.layout.sp
        show = partial(self._show, number, owners) if speaks else _nothing
        return Rewrite.apply(hidden, value, gradient, show)  # type: ignore[no-any-return]

    def _drawn(self, kind: str, module: int, owners: Tensor, like: Tensor) -> Tensor:
        """Standard normal for every real token, 0 for padding: in the shape, type and device of `like`."""
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
                grad.flatten(0, 1), owners.flatten(0, 1), length=config.train.seq_length, seed=config.train.seed
            ),
        )


def _nothing(grad: Tensor) -> None:
    pass
