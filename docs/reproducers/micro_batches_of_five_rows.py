"""Megatron-LM, 0.19.0 to main of 2026-08 (e86c262ccd): experts crash with five packed rows in a micro-batch under cp 2.

    PYTHONPATH=Megatron-LM python micro_batches_of_five_rows.py

And under tp 2 with sequence parallel. TransformerLayer._maybe_unflatten_for_moe gets the merged rows of a micro-batch,
and splits them again, so that the router sees them one by one. It divides the number of tokens that this rank holds by
tokens_per_sample, the length of a whole row, but the rank holds half of each row: of two rows it makes one, silently,
and of four two of the wrong ones; of five it makes two, and the tokens do not fit. Exit code 1 if so.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from megatron.core.transformer.transformer_layer import TransformerLayer

LENGTH, HIDDEN, RANKS = 64, 4, 2


def main() -> int:
    layer, params = SimpleNamespace(is_moe_layer=True), SimpleNamespace(tokens_per_sample=LENGTH)
    wrong = False
    for rows in (2, 4, 5):
        hidden = torch.zeros(rows * LENGTH // RANKS, 1, HIDDEN)  # of one of two ranks
        found, _, _ = TransformerLayer._maybe_unflatten_for_moe(layer, hidden, None, params)
        wrong |= found.shape[-1] != HIDDEN
        print(f"{rows} rows, {len(hidden)} tokens on this rank: the router gets {tuple(found.shape)}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
