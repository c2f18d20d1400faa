"""Sets the probe's position back while backward computes a layer once more.

Under pipeline parallelism the forward is at a later micro-batch by then. Schedules run the backwards of a model chunk
in the order of its forwards, so the n-th recomputation of a module is that of its n-th forward in the pass.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from harness.node.data_paths.base import RankContext
from harness.node.probe.hooks.layers import PassState
from harness.node.probe.model.parts import mtp_layers
from harness.node.probe.model.recompute import recomputed_module, recomputing


class Recomputed:
    """Hooks around the modules that are computed twice; must be made before hooks that read the state."""

    def __init__(self, chunks: list[Any], context: RankContext, state: PassState) -> None:
        self.state = state
        self.waiting: list[deque[dict[str, Any]]] = []  # per module: positions of its forwards, until their backward
        for chunk in chunks:
            for layer in (*chunk.decoder.layers, *mtp_layers(chunk)):
                module = recomputed_module(context.config.recompute, layer)
                if module is not None:
                    self._watch(module)

    def begin(self) -> None:
        """Before a pass: one without a backward leaves its positions behind."""
        for positions in self.waiting:
            positions.clear()

    def _watch(self, module: Any) -> None:
        positions: deque[dict[str, Any]] = deque()
        later: list[dict[str, Any]] = []
        self.waiting.append(positions)

        def enter(*_: Any) -> None:
            now = dict(vars(self.state))
            if recomputing():
                later.append(now)
                vars(self.state).update(positions.popleft())
            else:
                positions.append(now)

        def leave(*_: Any) -> None:
            if recomputing():
                vars(self.state).update(later.pop())

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
