"""Megatron-LM, up to main of 2026-08: FLOPs of --quick-geglu are counted without its gate.

    PYTHONPATH=Megatron-LM python flops_of_quick_geglu.py

num_floating_point_operations counts three matrices in a dense layer or an expert if args.swiglu is set, and two if not.
--quick-geglu sets gated_linear_unit too, so layers have three, but it leaves swiglu off. Throughput per GPU is reported
too low: by a fifth in this example. Exit code 1 if the two gated activations have different counts.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from megatron.training.training import num_floating_point_operations

ROWS, SLOTS = 4, 128


class Args(SimpleNamespace):
    """Upstream's arguments; those that are not named are off."""

    def __getattr__(self, name: str) -> Any:
        return None


def counted(**activation: bool) -> float:
    """FLOPs of a step with this activation."""
    args = Args(
        num_layers=4,
        hidden_size=64,
        ffn_hidden_size=256,
        moe_ffn_hidden_size=256,
        num_attention_heads=8,
        num_query_groups=8,
        kv_channels=8,
        seq_length=SLOTS,
        padded_vocab_size=128,
        **activation,
    )
    return float(num_floating_point_operations(args, ROWS))


def main() -> int:
    """Compare two activations whose layers have matrices of the same sizes."""
    swiglu, geglu = counted(swiglu=True), counted(swiglu=False, quick_geglu=True)
    print(f"FLOPs of a step: {swiglu:.4g} with --swiglu, {geglu:.4g} with --quick-geglu")
    return int(swiglu != geglu)


if __name__ == "__main__":
    sys.exit(main())
