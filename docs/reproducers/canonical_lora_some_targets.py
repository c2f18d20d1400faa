"""Megatron-Bridge 0.4 to 0.6.2 and main of 2026-08: canonical LoRA needs an adapter on each of query, key and value.

    python canonical_lora_some_targets.py

CanonicalLoRA takes target_modules such as [linear_q, linear_v], the usual choice, and then keeps None in the place of
the other adapters (a comment in transform shows linear_q alone). LoRALinearSplitQKV.forward calls all three, and
LoRALinearSplitFC1UpGate.forward calls both for gate and up, so the first forward pass raises. Here keys have no
adapter. Exit code 1 if that raises.
"""

from __future__ import annotations

import sys

import torch
from megatron.bridge.peft.canonical_lora import LoRALinearSplitQKV, ModuleDict


class Linear(torch.nn.Linear):
    """As Megatron's: returns the output and no bias."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return super().forward(x), None


def main() -> int:
    size = 8
    query, value = torch.nn.Linear(size, size), torch.nn.Linear(size, size)
    adapters = ModuleDict({"adapter_q": query, "adapter_k": None, "adapter_v": value})
    layer = LoRALinearSplitQKV(Linear(size, 3 * size), adapters)
    try:
        layer(torch.zeros(4, 1, size))
    except TypeError as error:
        print(f"the forward pass raises {type(error).__name__}: {error}")
        return 1
    print("the forward pass needs no adapter on keys")
    return 0


if __name__ == "__main__":
    sys.exit(main())
