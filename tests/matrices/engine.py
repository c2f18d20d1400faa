"""Compares the rules of attention with Transformer Engine itself, without a GPU. Runs in the environment of a stack.

    python engine.py choice     rules against get_attention_backend on a Hopper GPU: a line of JSON per cell
    python engine.py call       arguments of DotProductAttention in the probe's model: a line of JSON per cell

The GPU is simulated. So are cuDNN's answers, which need a driver: they accept the head sizes that the rules accept, so
`choice` does not test those sizes themselves. The kernel of `call` is the harness's reference attention.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed as dist

from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Coordinates, Layout
from harness.core.packing.documents import adversarial_mix
from harness.core.packing.options import PackingOptions
from harness.features.attention.limits import HEAD_MOST, HEAD_MULTIPLE, limits
from harness.runtime.device import cpu_stubs

HEADS, KV_HEADS = 8, 4
SWITCHES = {"te": "111", "te-fused": "010"}  # flash, fused, unfused, as Megatron sets them
SIZES = (8, 12, 64, 128, 256, 264)  # of a head
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def cell(kind: str, dtype: str, size: int, padded: bool, cp: int, path: str) -> CellConfig:
    return CellConfig(
        layout=Layout(cp=cp),
        data_path=path,
        attention=kind,
        dtype=dtype,
        documents=adversarial_mix(64, 2),
        train=TrainConfig(steps=1),
        model=ModelConfig(heads=HEADS, kv_heads=KV_HEADS, hidden=HEADS * size),
        options=PackingOptions(pad_seq_to_mult=16) if padded else PackingOptions(),
    )


def choice() -> Iterator[dict[str, Any]]:
    """For each cell `ours`: ids of the limits that reject it; `theirs`: whether the engine has a back end for it."""
    import transformer_engine.pytorch.attention.dot_product_attention.utils as engine

    real = engine.tex
    engine.get_device_compute_capability = lambda: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(
        major=9, minor=0, shared_memory_per_block_optin=232448
    )
    for kind, dtype, size, padded, cp, path in product(
        SWITCHES, DTYPES, SIZES, (False, True), (1, 2), ("reference", "unpacked")
    ):
        if path == "unpacked" and padded:
            continue
        for name, value in zip(("FLASH", "FUSED", "UNFUSED"), SWITCHES[kind]):
            os.environ[f"NVTE_{name}_ATTN"] = value
        engine.tex = _Cudnn(real, takes=size % HEAD_MULTIPLE == 0 and size <= HEAD_MOST)
        config = cell(kind, dtype, size, padded, cp, path)
        left = engine.get_attention_backend(_parameters(engine, config, size))[-1]
        yield {
            "cell": [kind, dtype, size, padded, cp, path],
            "ours": [limit.id for limit, _ in limits(config)],
            "theirs": any(left),
        }


def _parameters(engine: Any, config: CellConfig, size: int) -> Any:
    packed, cp = config.style.packed, config.layout.cp
    return engine.AttentionParams(
        qkv_dtype=DTYPES[config.dtype],
        qkv_layout="thd_thd_thd" if packed else "sbhd_sbhd_sbhd",
        batch_size=4 if packed else 1,
        num_heads=HEADS,
        num_gqa_groups=KV_HEADS,
        max_seqlen_q=64,
        max_seqlen_kv=64,
        num_tokens_q=128,
        num_tokens_kv=128,
        head_dim_qk=size,
        head_dim_v=size,
        attn_mask_type="padding_causal" if packed else "causal",
        window_size=(-1, 0),
        pad_between_seqs=packed and (config.options.pad_seq_to_mult is not None or cp > 1),
        context_parallel=cp > 1,
        cp_size=cp,
    )


class _Cudnn:
    """The engine's C++ module, with a simulated answer for cuDNN, which needs a driver."""

    def __init__(self, real: Any, takes: bool) -> None:
        self._real, self._takes = real, takes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_fused_attn_backend(self, *_: Any) -> tuple[Any, str]:
        known = self._real.NVTE_Fused_Attn_Backend
        return (known.NVTE_F16_arbitrary_seqlen if self._takes else known.NVTE_No_Backend), ""


def call() -> Iterator[dict[str, Any]]:
    """For each cell the layers that called the engine, and the arguments of the first call."""
    import transformer_engine.pytorch as engine
    import transformer_engine.pytorch.module.base as base

    cpu_stubs.install()
    base.torch = SimpleNamespace(**vars(torch))  # TransformerEngineBaseModule asks whether there is a GPU
    base.torch.cuda = SimpleNamespace(**{**vars(torch.cuda), "is_available": lambda: True})
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    calls: list[dict[str, Any]] = []
    engine.DotProductAttention.forward = _recorded(engine.DotProductAttention.forward, calls)
    for kind, padded, path in (("te", False, "reference"), ("te", True, "reference"), ("te-fused", False, "unpacked")):
        calls.clear()
        for name in [name for name in os.environ if name.startswith("NVTE_")]:
            del os.environ[name]  # Megatron sets them, and rejects values set by others
        _trained(cell(kind, "bf16", 8, padded, 1, path))
        yield {"cell": [kind, padded, path], "layers": [item.pop("layer") for item in calls], **calls[0]}


def _recorded(real: Any, calls: list[dict[str, Any]]) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    from harness.features.attention.node_reference import ReferenceAttention

    def forward(self: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        inspect.signature(real).bind(self, query, key, value, mask, **more)
        known = {name: item for name, item in more.items() if name in inspect.signature(PackedSeqParams).parameters}
        offsets = [more.get(name) for name in ("cu_seqlens_q", "cu_seqlens_q_padded")]
        calls.append(
            {
                "layer": self.layer_number,
                "mask": more["attn_mask_type"],
                "offsets": [item.tolist() if item is not None else None for item in offsets],
                "one_object": offsets[0] is offsets[1],
                "pad_between_seqs": more.get("pad_between_seqs"),
                "kv_heads": key.shape[-2],
            }
        )
        params = PackedSeqParams(**known) if known else None
        return ReferenceAttention(self.config, layer_number=1)(query, key, value, None, packed_seq_params=params)

    return forward


def _trained(config: CellConfig) -> None:
    """Forward and backward over the first micro-batch."""
    from megatron.core import parallel_state

    from harness.probe.model import gpt
    from harness.probe.passes import forward
    from harness.probe.truth import StepTruth
    from harness.runtime.device.placement import choose_device
    from harness.upstreams.node_base import RankContext
    from harness.upstreams.node_data_paths import ADAPTERS

    device = choose_device(0, 1, "cpu")
    gpt.initialize_parallel(config, device)
    (chunk,) = gpt.build_chunks(config, gpt.transformer_config(config), device)
    place = Coordinates(tp=0, cp=0, dp=0, pp=0)
    path = ADAPTERS[config.data_path](RankContext(config=config, place=place, device=device, folder=Path()))
    iterator = path.iterator(StepTruth(config, 0, 0), 0)
    forward(chunk, path.fetch(iterator, 0), config).float().sum().backward()
    parallel_state.destroy_model_parallel()


if __name__ == "__main__":
    for line in {"choice": choice, "call": call}[sys.argv[1]]():
        print("engine: " + json.dumps(line))
