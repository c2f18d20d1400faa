"""Megatron-LM core_v0.19.0 and main of 2026-08: a blend of data sets crashes under context parallelism.

    PYTHONPATH=Megatron-LM python blend_under_cp.py

BlendedDataset adds `dataset_id`, one number per sample, to what a data set returns. pretrain_gpt.get_batch passes on
the batch of tensor-parallel rank 0 as it is, and get_batch_on_this_cp_rank splits each of its tensors
along the sequence, which `dataset_id` lacks. Up to core_v0.18 the batch holds only what the model gets. --sft is not
concerned: its rows are split by document, and only named tensors are. Exit code 1 if the batch cannot be split.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.utils import get_batch_on_this_cp_rank


def main() -> int:
    row = {name: torch.arange(8) for name in ("tokens", "labels", "loss_mask", "position_ids")}
    blend = SimpleNamespace(dataset_index=[0], dataset_sample_index=[0], datasets=[[row]])
    batch = torch.utils.data.default_collate([BlendedDataset.__getitem__(blend, 0)])
    dist.get_world_size = lambda group=None: 2  # type: ignore[assignment]  # the first of two context-parallel ranks
    dist.get_rank = lambda group=None: 0  # type: ignore[assignment]
    names = ", ".join(batch)
    try:
        split = get_batch_on_this_cp_rank(batch, is_hybrid_cp=False)
    except IndexError as error:
        print(f"a batch with {names} raises IndexError: {error}")
        return 1
    print(f"tokens of the first rank: {split['tokens'].tolist()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
