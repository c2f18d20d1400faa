"""Faults of class model: experts, multi-token prediction and latent attention."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.cell.model import MlaConfig, ModelConfig, MoeConfig, MtpConfig
from harness.core.outcomes import Lane
from harness.core.packing.options import PackingOptions
from harness.plan.faults.spec import FaultSpec

_ONE = Layout()
_CP = Layout(cp=2)
_TP = Layout(tp=2, sp=True)
_EXPERTS = ModelConfig(layers=2, moe=MoeConfig())
_BALANCED = ModelConfig(layers=2, moe=MoeConfig(aux_loss="aux_loss", aux_loss_coeff=0.1))
_MASKED = ModelConfig(layers=2, moe=MoeConfig(aux_loss="aux_loss", aux_loss_coeff=0.1, padding_mask=True))
_PER_ROW = ModelConfig(layers=2, moe=MoeConfig(aux_loss="seq_aux_loss", aux_loss_coeff=0.1))
_PREDICTING = ModelConfig(layers=2, mtp=MtpConfig())
# With smaller latent projections, positions would have next to no effect on the output.
_LATENT = ModelConfig(layers=2, mla=MlaConfig(q_lora_rank=64, kv_lora_rank=64, qk_pos_emb_head_dim=32))

MODELS: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="aux-loss-divided-by-cp",
        fault_class="model",
        summary="gradients of the routers' auxiliary loss are cp times too small; every loss is right",
        modelled_on="D2: NVIDIA/Megatron-LM f6e0d425a5 (PR 2237)",
        layout=_CP,
        why="cp 1 would hide the factor",
        model=_BALANCED,
        lane=Lane.NUMERICS,
        checks=("aux_loss", "parameter_gradients"),
        where={"stage": 0, "layer": 1, "step": 0, "ratio": "x 1/cp"},
    ),
    FaultSpec(
        name="z-loss-added-up-over-cp",
        fault_class="model",
        summary="the routers' z-loss of each context rank is a mean over its own tokens, and these are added up",
        modelled_on="NVIDIA/Megatron-LM 9ef8a2a420 (PR 5047): the scale of the z-loss over tp and cp",
        layout=_CP,
        why="cp 1 would hide the factor",
        model=ModelConfig(layers=2, moe=MoeConfig(z_loss_coeff=0.1)),
        lane=Lane.NUMERICS,
        checks=("z_loss", "parameter_gradients"),
        where={"stage": 0, "layer": 1, "step": 0, "micro_batch": 0},
    ),
    FaultSpec(
        name="padding-counted-by-routers",
        fault_class="model",
        summary="routers get no padding mask, so they balance experts over padding too",
        modelled_on="D11: NVIDIA-NeMo/Megatron-Bridge 23743e2f7 (PR 5470), Megatron-LM dev e348ed156e",
        layout=_ONE,
        why="one rank with padded rows",
        data_path="unpacked",
        model=_MASKED,
        lane=Lane.NUMERICS,
        checks=("aux_loss",),
        where={"stage": 0, "layer": 1, "step": 0, "micro_batch": 0},
    ),
    FaultSpec(
        name="router-statistics-over-merged-rows",
        fault_class="model",
        summary="the auxiliary loss per row treats the merged rows of a micro-batch as one",
        modelled_on="D10: NVIDIA/Megatron-LM e86c262ccd (PR 5696), fixed in 0.19",
        layout=_ONE,
        why="one rank with two packed rows in a micro-batch",
        micro_batch_size=2,
        model=_PER_ROW,
        options=PackingOptions(pad_to_max_length=True),
        lane=Lane.NUMERICS,
        checks=("aux_loss", "parameter_gradients"),
        where={"stage": 0, "layer": 1, "step": 0, "micro_batch": 0},
    ),
    FaultSpec(
        name="router-weights-differ-on-one-tp-rank",
        fault_class="model",
        summary="tp rank 1 routes its share of the tokens with other router weights",
        modelled_on="NVIDIA/Megatron-LM issue 7452 class: parallelism composition; copies that are not equal",
        layout=_TP,
        why="two tp ranks, each routing its part of the sequence",
        model=ModelConfig(layers=2, moe=MoeConfig()),
        lane=Lane.NUMERICS,
        checks=("activations", "router_choice"),
        where={"stage": 0, "layer": 1},
    ),
    FaultSpec(
        name="experts-of-another-ep-rank",
        fault_class="model",
        summary="ep rank 1 holds a second copy of the experts of ep rank 0",
        modelled_on="E5: NVIDIA-NeMo/RL PR 4079, tokens that reach the wrong experts; a checkpoint sharded wrongly",
        layout=Layout(dp=2, ep=2),
        why="two ranks that share the experts of a layer",
        model=_EXPERTS,
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 1},
    ),
    FaultSpec(
        name="expert-gradients-times-ep",
        fault_class="model",
        summary="gradients of experts are summed once more over the data-parallel replicas; losses are right",
        modelled_on="D4: NVIDIA/Megatron-LM 3bdcbbbe5d, a reduction over the wrong group",
        layout=Layout(dp=2, ep=2),
        why="two ranks that share the experts of a layer",
        model=_EXPERTS,
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"stage": 0, "layer": 1, "parameter": "decoder.layers.0.mlp.experts.0.linear_fc1.weight"},
    ),
    FaultSpec(
        name="prediction-rolls-across-documents",
        fault_class="model",
        summary="multi-token prediction shifts tokens and labels over the whole row: documents see the next one",
        modelled_on="B5 and MTP of 1.4: NVIDIA/Megatron-LM roll_tensor before packed sequences; d8144e7712",
        layout=Layout(pp=2),
        why="two stages, so that the last can be named",
        model=_PREDICTING,
        lane=Lane.NUMERICS,
        checks=("mtp_loss", "parameter_gradients"),
        where={"stage": 1, "step": 0, "depth": 1, "document": 0},
    ),
    FaultSpec(
        name="prediction-without-loss-mask",
        fault_class="model",
        summary="multi-token prediction gets no loss mask, so it trains on masked documents too",
        modelled_on="D9: NVIDIA/Megatron-LM a22c40e8d6 (PR 3159), the token counts of MTP",
        layout=_ONE,
        why="one rank with a masked document",
        model=_PREDICTING,
        lane=Lane.NUMERICS,
        checks=("mtp_loss",),
        where={"stage": 0, "step": 0, "depth": 1},
    ),
    FaultSpec(
        name="latent-rope-by-real-offsets",
        fault_class="model",
        summary="latent attention applies rotary positions at the real offsets although documents are padded",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2, MLA rotary with unpadded cu_seqlens",
        layout=_ONE,
        why="one rank with padded documents",
        model=_LATENT,
        options=PackingOptions(pad_seq_to_mult=4),
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 1},
    ),
)
