"""Restores the probe's position while backward recomputes a layer.

With pipeline parallelism, forwards of later micro-batches have already run by then. Schedules run the backwards of a
model chunk in the order of its forwards, so a module's n-th recomputation belongs to its n-th forward in the pass.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from harness.node.data_paths.base import RankContext
from harness.node.probe.hooks.layers import PassState
from harness.node.probe.model.parts import mtp_layers
from harness.node.probe.model.recompute import recomputed_module, recomputing


class Recomputed:
    """Hooks around recomputed modules; construct it before registering hooks that read the state."""

    def __init__(self, chunks: list[Any], context: RankContext, state: PassState) -> None:
        self.state = state
        self.waiting: list[deque[dict[str, Any]]] = []  # per module: positions of its forwards, until their backward
        for chunk in chunks:
            for layer in (*chunk.decoder.layers, *mtp_layers(chunk)):
                module = recomputed_module(context.config.recomputes, layer)
                if module is not None:
                    self._watch(module)

    def begin(self) -> None:
        """Start a pass: drop the positions of a previous pass without backward."""
        for positions in self.waiting:
            positions.clear()

    def _watch(self, module: Any) -> None:
        positions: deque[dict[str, Any]] = deque()
        interrupted: list[dict[str, Any]] = []  # positions to return to
        self.waiting.append(positions)

        def enter(*_: Any) -> None:
            now = dict(vars(self.state))
            if recomputing():
                interrupted.append(now)
                vars(self.state).update(positions.popleft())
            else:
                positions.append(now)

        def leave(*_: Any) -> None:
            if recomputing():
                vars(self.state).update(interrupted.pop())

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
