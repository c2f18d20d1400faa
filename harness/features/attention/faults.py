"""Faults in variants of attention."""

from __future__ import annotations

from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Lane
from harness.core.packing.options import PackingOptions
from harness.faults.spec import ONE, PP, TP, FaultSpec
from harness.features.attention.config import MlaConfig

# With smaller latent projections, positions would have next to no effect on the output.
_LATENT = ModelConfig(layers=2, mla=MlaConfig(q_lora_rank=64, kv_lora_rank=64, qk_pos_emb_head_dim=32))


LATENT: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="latent-rope-by-real-offsets",
        fault_class="model",
        summary="latent attention applies rotary positions at the real offsets although documents are padded",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2, MLA rotary with unpadded cu_seqlens",
        layout=ONE,
        why="one rank with padded documents",
        model=_LATENT,
        options=PackingOptions(pad_seq_to_mult=4),
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 1},
    ),
)


ATTENTION: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="window-one-token-longer-on-one-tp-rank",
        fault_class="model",
        summary="heads of tp rank 1 attend to one token more than the window holds, from the second layer on",
        modelled_on="NVIDIA/Megatron-LM 3b1b9b2671: windows that differ from what the configuration says",
        layout=TP,
        why="two tp ranks, whose heads have different windows",
        model=ModelConfig(layers=2, window=8),
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 2},
    ),
    FaultSpec(
        name="window-of-the-wrong-layers",
        fault_class="model",
        summary="layers that have no window get one, and the others none: the second stage counts its layers from 0",
        modelled_on="NVIDIA/Megatron-LM issue 7452 class: parallelism composition; layers numbered within a stage",
        layout=PP,
        why="two stages, of which the second is wrong",
        model=ModelConfig(layers=4, window=8, window_skip=2),
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 1, "layer": 3},
    ),
    FaultSpec(
        name="softmax-scale-dropped-on-one-stage",
        fault_class="model",
        summary="attention of the second stage scales scores by the head size, not by the model's own factor",
        modelled_on="NVIDIA/Megatron-LM softmax_scale of TransformerConfig: a setting that a module does not get",
        layout=PP,
        why="two stages, of which the second is wrong",
        # A factor that makes attention matter: weights of 0.02 give scores close to 0.
        model=ModelConfig(layers=2, softmax_scale=4.0),
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 1, "layer": 2},
    ),
)
