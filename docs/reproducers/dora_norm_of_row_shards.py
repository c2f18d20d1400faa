"""Megatron-Bridge 0.4 to 0.6.2 and main of 2026-08: DoRA divides by the norm of a rank's shard of a weight.

    python dora_norm_of_row_shards.py

DoRA scales each output of a layer by its magnitude over the norm of its row of W + BA. A row parallel layer
(linear_proj, linear_fc2) has a part of every row on each tensor-parallel rank. DoRALinear._get_weight_norm gathers the
adapter's second factor, but does not sum the squares over ranks, so each rank divides by the norm of its part:
about the root of tp too small, and different on every rank. Magnitudes, which a checkpoint stores once for all ranks,
mean something else in every layout. Here two ranks hold a weight of ones, 4 x 8. Exit code 1 if the norm of a row is
not the root of 8.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron.bridge.peft.dora import DoRA
from megatron.core import parallel_state
from megatron.core.tensor_parallel import RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig

OUT, INTO = 4, 8


def rank_norm(rank: int, store: str, found: str) -> None:
    torch.cuda.current_device = lambda: torch.device("cpu")  # where upstream's gather puts its result
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=INTO,
        num_attention_heads=2,
        tensor_model_parallel_size=2,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
    )
    made = {"init_method": torch.nn.init.ones_, "bias": False, "input_is_parallel": True, "skip_bias_add": True}
    layer = RowParallelLinear(INTO, OUT, config=config, **made)
    adapted = DoRA(target_modules=["linear_proj"], dim=2).transform(layer, "linear_proj", "decoder")
    Path(f"{found}{rank}").write_text(str(float(adapted._get_weight_norm()[0])))
    dist.destroy_process_group()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = f"{folder}/norm-"
        mp.start_processes(rank_norm, (f"{folder}/store", found), nprocs=2, start_method="fork")
        norms = [float(Path(f"{found}{rank}").read_text()) for rank in (0, 1)]
    right = INTO**0.5
    print(f"norm of a row on each rank: {norms[0]:.3f}, {norms[1]:.3f}; of the whole row: {right:.3f}")
    return int(any(abs(norm - right) > 1e-3 for norm in norms))


if __name__ == "__main__":
    sys.exit(main())
