"""Megatron-LM core_v0.19.0 and main of 2026-08: --dataloader-inter-document-masking under context parallelism.

    PYTHONPATH=Megatron-LM python inter_document_under_cp.py

With that flag, pretrain_gpt.get_batch splits a row over context-parallel ranks as a whole
(use_per_sequence_balancing): each rank gets two chunks of the row. The offsets of documents go with it, and what reads
them expects that each document is split into two chunks per rank, as thd_get_partitioned_indices of Transformer Engine
does, and as Megatron's own rotary embedding does. So tokens get the positions of others, and attention takes parts of
documents for other parts. Nothing raises. Here a row has two documents of eight tokens, and this is the first of two
ranks. Exit code 1 if the positions of its tokens are not those that their rotary embedding has.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_thd
from megatron.core.utils import get_batch_on_this_cp_rank

ANGLE = 0.1  # per position


class FirstOfTwo:
    """The context-parallel group."""

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0


def rotated(tokens: int, offsets: torch.Tensor) -> list[int]:
    """The positions by which upstream rotates the tokens of this rank."""
    angles = (torch.arange(8) * ANGLE).view(-1, 1, 1, 1).expand(-1, 1, 1, 2)
    unit = torch.tensor([1.0, 0.0]).expand(tokens, 1, 2)
    turned = _apply_rotary_pos_emb_thd(unit, offsets, angles, cp_group=FirstOfTwo(), max_seqlen=8)
    return (torch.atan2(turned[:, 0, 1], turned[:, 0, 0]) / ANGLE).round().int().tolist()


def main() -> int:
    offsets = torch.tensor([0, 8, 16], dtype=torch.int32)
    row = {"position_ids": torch.arange(8).repeat(2)[None], "cu_seqlens": offsets}
    dist.get_world_size = lambda group=None: 2  # type: ignore[assignment]
    dist.get_rank = lambda group=None: 0  # type: ignore[assignment]
    part = get_batch_on_this_cp_rank(row, is_hybrid_cp=False, use_per_sequence_balancing=True)
    held = part["position_ids"][0].tolist()
    used = rotated(len(held), part["cu_seqlens"])
    print(f"positions of the tokens {held}, of their rotary embedding {used}")
    return int(held != used)


if __name__ == "__main__":
    sys.exit(main())
