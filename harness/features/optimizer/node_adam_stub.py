"""CPU stub of Transformer Engine's FusedAdam."""

from __future__ import annotations

from typing import Any

import torch


class FusedAdam(torch.optim.AdamW):
    """Torch's AdamW, but with the number of steps in the parameter groups, where FusedAdam has it.

    Megatron's optimizers read it there, when they save and load a checkpoint, if Transformer Engine is installed.
    """

    def __init__(self, params: Any, *, adam_w_mode: bool = True, **settings: Any) -> None:
        super().__init__(params, **settings)
        if not adam_w_mode:
            raise NotImplementedError("the CPU stub of FusedAdam decouples weight decay, as Megatron does by default")

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for state in self._held(group):
                # torch's AdamW reads it there; it is removed again, since checkpoints of FusedAdam must not have it.
                state["step"] = torch.tensor(float(group.get("step", 0)))
        loss = super().step(closure)
        for group in self.param_groups:
            if group["params"]:
                group["step"] = group.get("step", 0) + 1
            for state in self._held(group):
                state.pop("step", None)
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.optim.Optimizer.__setstate__(self, state)  # that of Adam reads the number of steps of every parameter
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def _held(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the states of the group's parameters that have been updated."""
        return [self.state[parameter] for parameter in group["params"] if self.state.get(parameter)]
