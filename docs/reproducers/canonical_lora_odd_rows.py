"""Megatron-Bridge 0.4 to 0.6.2 and main of 2026-08: canonical LoRA needs tp to divide the number of tokens.

    python canonical_lora_odd_rows.py

LoRALinearSplitQKV puts the outputs of its adapters for query, key and value together with the heads of the whole model,
but a tensor-parallel rank has only its share of them. So it takes tp tokens for one: right by chance if tp divides
their number, as with sequence parallelism, and a crash otherwise. Packed rows may have any number of tokens. Here a
rank of two has 2 of 4 heads, and 5 tokens. Exit code 1 if that raises.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from megatron.bridge.peft.canonical_lora import LoRALinearSplitQKV

TP, HEADS, GROUPS, SIZE, TOKENS = 2, 4, 2, 8, 5


def main() -> int:
    config = SimpleNamespace(num_attention_heads=HEADS, num_query_groups=GROUPS, kv_channels=SIZE)
    query = torch.zeros(TOKENS, 1, HEADS // TP * SIZE)
    key = torch.zeros(TOKENS, 1, GROUPS // TP * SIZE)
    wrapper = SimpleNamespace(to_wrap=SimpleNamespace(config=config))
    try:
        LoRALinearSplitQKV._interleave_qkv(wrapper, query, key, key)
    except RuntimeError as error:
        print(f"{TOKENS} tokens on a rank of tp {TP}: {error}")
        return 1
    print("the outputs of the adapters are put together")
    return 0


if __name__ == "__main__":
    sys.exit(main())
