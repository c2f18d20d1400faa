"""Megatron-LM, 0.14 to main of 2026-08: `--moe-token-drop-policy position` need not drop the last tokens of a row.

    PYTHONPATH=Megatron-LM python tokens_dropped_by_position.py

The policy is documented to drop tokens at the end of each batch. apply_router_token_dropping takes the tokens that
torch.topk picks from the routing map, in which all candidates are equal. Which of equal values topk picks is undefined:
torch's kernel for the CPU picks the last ones here, so the first tokens are dropped. A stable sort would define it.
Exit code 1 if so.
"""

from __future__ import annotations

import sys

import torch
from megatron.core.transformer.moe.moe_utils import apply_router_token_dropping

TOKENS, EXPERTS = 8, 2


def main() -> int:
    chosen = torch.ones(TOKENS, EXPERTS, dtype=torch.bool)
    _, kept = apply_router_token_dropping(
        chosen / EXPERTS, chosen, router_topk=EXPERTS, capacity_factor=0.5, drop_policy="position"
    )
    found = kept[:, 0].nonzero().flatten().tolist()
    print(f"of tokens 0 to {TOKENS - 1} an expert with room for {len(found)} takes {found}")
    return int(found != list(range(len(found))))


if __name__ == "__main__":
    sys.exit(main())
