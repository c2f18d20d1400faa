"""The adapter of the data path: the harness's, and rotary embeddings that know where the slots of a rank are.

Megatron's rotary embeddings expect zigzag chunks of each document, so a framework that splits otherwise brings its own.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings import rope_utils
from torch import Tensor

from harness.core.packing.arithmetic import contiguous
from harness.upstreams.builtin.node_reference import ReferencePath
from harness.upstreams.node_base import RankContext


class ContiguousPath(ReferencePath):
    """A framework's code would do this where it builds its model."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        rope_utils._apply_rotary_pos_emb_thd = rotated


def rotated(t: Tensor, cu_seqlens: Tensor, freqs: Tensor, *args: Any, cp_group: Any = None, **more: Any) -> Tensor:
    """Rotate [slots, heads, dim] by each slot's position in its document."""
    bounds: list[int] = cu_seqlens.tolist()
    lengths = cu_seqlens.diff()
    positions = torch.arange(bounds[-1]) - torch.repeat_interleave(cu_seqlens[:-1].long(), lengths.long())
    own = positions[contiguous(bounds, cp_group.size(), cp_group.rank())]
    more.pop("multi_latent_attention", None)
    return rope_utils._apply_rotary_pos_emb_bshd(t.unsqueeze(1), freqs[own], *args, **more).squeeze(1)
