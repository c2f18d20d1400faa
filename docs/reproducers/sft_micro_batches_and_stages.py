"""Megatron-LM, main since 2026-06-25 (2a43e0d65f): `--sft` with `--micro-batch-size 2` and two pipeline stages crashes.

    PYTHONPATH=Megatron-LM python sft_micro_batches_and_stages.py

The first stage merges the rows of a micro-batch into one, [1, 2 * sequence length], since attention with packed rows
needs one stream of tokens. The next stage receives the activations in a tensor of the shape that the schedule computes
from --seq-length and --micro-batch-size. Both have the same number of elements, so nothing notices, and the layer of
the next stage gets [sequence length, 2, hidden] in place of [2 * sequence length, 1, hidden]. Exit code 1 if so.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from megatron.core.pipeline_parallel.schedules import get_tensor_shapes
from megatron.core.utils import flatten_batch_for_packed_sequences

ROWS, LENGTH, HIDDEN = 2, 64, 32


def main() -> int:
    rows = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    offsets = torch.tensor([[0, 20, LENGTH], [0, 50, LENGTH]], dtype=torch.int32)
    batch = {"tokens": rows, "cu_seqlens": offsets, "max_seqlen": torch.tensor([44, 50], dtype=torch.int32)}
    tokens = flatten_batch_for_packed_sequences(batch)["tokens"]
    sent = (tokens.shape[1], tokens.shape[0], HIDDEN)  # of a decoder layer: tokens, rows, hidden
    one = SimpleNamespace(size=lambda: 1)
    (received,) = get_tensor_shapes(
        seq_length=LENGTH,
        micro_batch_size=ROWS,
        decoder_seq_length=None,
        config=SimpleNamespace(variable_seq_lengths=False, sequence_parallel=False, hidden_size=HIDDEN),
        tp_group=one,
        cp_group=one,
    )
    print(f"stage 0 sends {sent}, stage 1 receives {tuple(received)}")
    return 0 if sent == tuple(received) else 1


if __name__ == "__main__":
    sys.exit(main())
