"""Faults of class model: experts and their routers, multi-token prediction, variants of attention, recurrent layers.

Those in models with adapters or vision run in the stack of upstream's trainers, which has Megatron-Bridge.
"""

from __future__ import annotations

from functools import partial

from harness.core.cell.layout import Layout
from harness.core.cell.model import MlaConfig, ModelConfig, MoeConfig, MtpConfig
from harness.core.data_paths.megatron_bridge import IN_BATCH
from harness.core.outcomes import Lane
from harness.core.packing.documents import mix
from harness.core.packing.options import PackingOptions
from harness.core.peft import PeftConfig
from harness.core.vision import VisionConfig
from harness.plan.faults.spec import CP, DP, ONE, PP, TP, TRAIN, FaultSpec
from harness.plan.faults.trainers import STACK_OF_TRAINERS

_EXPERTS = ModelConfig(layers=2, moe=MoeConfig())
_BALANCED_STRONGLY = ModelConfig(layers=2, moe=MoeConfig(aux_loss="aux_loss", aux_loss_coeff=0.1))
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
        layout=CP,
        why="cp 1 would hide the factor",
        model=_BALANCED_STRONGLY,
        lane=Lane.NUMERICS,
        checks=("aux_loss", "parameter_gradients"),
        where={"stage": 0, "layer": 1, "step": 0, "ratio": "x 1/cp"},
    ),
    FaultSpec(
        name="z-loss-added-up-over-cp",
        fault_class="model",
        summary="the routers' z-loss of each context rank is a mean over its own tokens, and these are added up",
        modelled_on="NVIDIA/Megatron-LM 9ef8a2a420 (PR 5047): the scale of the z-loss over tp and cp",
        layout=CP,
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
        layout=ONE,
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
        layout=ONE,
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
        layout=TP,
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
        layout=PP,
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
        layout=ONE,
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
        layout=ONE,
        why="one rank with padded documents",
        model=_LATENT,
        options=PackingOptions(pad_seq_to_mult=4),
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 1},
    ),
)


_DELTA = ModelConfig(layers=4, pattern="*-G-")
_MAMBA = ModelConfig(layers=4, pattern="M-*-")

HYBRID: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="sequence-index-dropped",
        fault_class="model",
        summary="packed params have no total number of tokens, so Mamba gets no seq_idx and its state never restarts",
        modelled_on="C1: NovaSky-AI/SkyRL b0f74aca4 (PR 2056), NVIDIA-NeMo/Megatron-Bridge 10d6e76b5 (PR 3484)",
        layout=ONE,
        why="one rank with two documents in a row",
        model=_MAMBA,
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 1, "document": 1, "token": 0},
    ),
    FaultSpec(
        name="delta-state-crosses-documents",
        fault_class="model",
        summary="on tp rank 1 the delta rule gets the offsets of one document; its convolution gets the right ones",
        modelled_on="C1 for Gated Delta Net: cu_seqlens lost between a layer and its kernel",
        layout=TP,
        why="two tp ranks with heads of their own",
        model=_DELTA,
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 3, "document": 1, "token": 0},
    ),
    FaultSpec(
        name="convolution-crosses-documents",
        fault_class="model",
        summary="the convolution before the delta rule reads the last tokens of the document before",
        modelled_on="NVIDIA/Megatron-LM 5ea9b42374 (PR 6550), convolutions of packed rows",
        layout=ONE,
        why="one rank with two documents in a row",
        model=_DELTA,
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 3, "document": 1, "token": 0},
    ),
    FaultSpec(
        name="delta-slots-in-zigzag-order",
        fault_class="model",
        summary="after the exchange of slots for heads over cp, the delta rule sees the slots in zigzag order",
        modelled_on="B17: NVIDIA/Megatron-LM dev 0f6fcb0c57, the all-to-all of Gated Delta Net over padded documents",
        layout=CP,
        why="cp 1 exchanges nothing",
        model=_DELTA,
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 3},
    ),
)


_BIASED = ModelConfig(layers=2, moe=MoeConfig(score_function="sigmoid", expert_bias=True, bias_rate=0.01))
_LIMITED = ModelConfig(layers=2, moe=MoeConfig(capacity_factor=1.0))

_BALANCED = ModelConfig(layers=2, moe=MoeConfig(aux_loss="aux_loss"))

EXPERTS: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="expert-bias-of-one-replica",
        fault_class="model",
        summary="replica 1 changes the biases of its experts by its own tokens, not by those of all replicas",
        modelled_on="NVIDIA/Megatron-LM aa786b72c0 (PR 4782): the tokens of experts are summed over another group",
        layout=DP,
        why="two replicas with different tokens",
        model=_BIASED,
        lane=Lane.NUMERICS,
        checks=("expert_bias",),
        where={"stage": 0, "step": 0, "dp": 1},
    ),
    FaultSpec(
        name="capacity-of-half-the-tokens",
        fault_class="model",
        summary="experts of replica 1 take half as many tokens as their capacity, and drop the others",
        modelled_on="NVIDIA/Megatron-LM ecb948e583 (PR 2214): the capacity of experts",
        layout=DP,
        why="two replicas, of which one is wrong",
        model=_LIMITED,
        lane=Lane.NUMERICS,
        checks=("capacity",),
        where={"layer": 1, "dp": 1},
    ),
    FaultSpec(
        name="other-tokens-dropped-after-an-update",
        fault_class="model",
        summary="after the first update experts of replica 1 drop the tokens with the highest weights, not the lowest",
        modelled_on="NVIDIA/Megatron-LM ecb948e583 (PR 2214): the capacity of experts",
        layout=DP,
        why="two replicas, of which one is wrong; the oracle drops the same tokens as far as rounding explains it",
        dtype="bf16",
        model=_LIMITED,
        lane=Lane.NUMERICS,
        checks=("router_choice",),
        where={"stage": 0, "layer": 1, "step": 1},
    ),
    FaultSpec(
        name="experts-split-over-other-ranks",
        fault_class="model",
        summary="experts that both tensor parallel ranks hold get a larger gradient on one of them, the sum is right",
        modelled_on="NVIDIA/Megatron-LM cd4afffa64 (PR 5916): whose gradients expert tensor parallel ranks share",
        layout=Layout(tp=2, sp=True, etp=1),
        why="two tp ranks, of which each holds whole experts",
        model=ModelConfig(layers=2, moe=MoeConfig()),
        lane=Lane.NUMERICS,
        checks=("replica_gradients", "parameter_gradients"),
        where={"stage": 0, "step": 0, "parameter": "decoder.layers.0.mlp.experts.0.linear_fc1.weight"},
    ),
    FaultSpec(
        name="other-experts-after-an-update",
        fault_class="model",
        summary="after the first update replica 1 sends tokens to other experts than those with the highest scores",
        modelled_on="NVIDIA/Megatron-LM aa786b72c0 (PR 4782): state of routers that only some ranks have",
        layout=DP,
        why="two replicas, of which one is wrong; in bf16 the oracle follows routers as far as rounding explains it",
        dtype="bf16",
        model=ModelConfig(layers=2, moe=MoeConfig()),
        lane=Lane.NUMERICS,
        checks=("router_choice",),
        where={"stage": 0, "layer": 1, "step": 1},
    ),
    FaultSpec(
        name="expert-gradients-not-divided",
        fault_class="model",
        summary="gradients of experts are not divided by the number of tokens; losses and other gradients are right",
        modelled_on="NVIDIA/Megatron-LM DistributedDataParallel.scale_gradients: buffers of experts left out",
        layout=Layout(dp=2, ep=2),
        why="two ranks that share the experts of a layer",
        data_path="sft",
        model=_BALANCED,
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "gradient_scale"),
        where={"stage": 0, "step": 0, "parameter": "decoder.layers.0.mlp.experts.0.linear_fc1.weight"},
        also={"gradient_scale": {"stage": 0, "step": 0}},
    ),
    FaultSpec(
        name="gradients-not-divided",
        fault_class="model",
        summary="no gradient is divided by the number of tokens; every loss is right",
        modelled_on="NVIDIA/Megatron-LM finalize_model_grads: a divisor that is left out",
        layout=DP,
        why="two replicas, and rows that the control does not have",
        data_path="sft",
        model=_BALANCED,
        lane=Lane.NUMERICS,
        checks=("aux_loss", "parameter_gradients", "gradient_scale", "grad_norm"),
        where={"stage": 0, "layer": 1, "step": 0},
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


_adapter_spec = partial(
    FaultSpec,
    fault_class="model",
    stack=STACK_OF_TRAINERS[1],
    model=ModelConfig(layers=2, peft=PeftConfig()),
    lane=Lane.NUMERICS,
)
ADAPTERS: tuple[FaultSpec, ...] = (
    _adapter_spec(
        name="adapter-gradient-of-one-tp-rank",
        summary="the gradient of an adapter's first factor is not summed over tp: each rank has that of its outputs",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge issue 5634, NVIDIA-NeMo/Megatron-Bridge 1c3758a10 (PR 5396)",
        layout=TP,
        why="two tp ranks with shards of the second factor",
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0, "stage": 0, "layer": 1},
    ),
    _adapter_spec(
        name="norm-left-trainable",
        summary="the last norm is not frozen, so it trains beside the adapters",
        modelled_on="NVIDIA-NeMo/Automodel issue 547: requires_grad of the base model is lost",
        layout=ONE,
        why="one rank",
        checks=("frozen_weights",),
        where={"parameter": "decoder.final_layernorm.weight", "rank": 0},
    ),
    _adapter_spec(
        name="frozen-weight-decays",
        summary="in the second step one rank's optimizer shrinks a frozen weight, as weight decay would",
        modelled_on="weight decay of parameters that have no gradient",
        layout=DP,
        why="two replicas, of which one changes",
        checks=("frozen_weights",),
        where={"parameter": "embedding.word_embeddings.weight", "rank": 1},
    ),
    _adapter_spec(
        name="merged-with-alpha-alone",
        summary="an adapter is merged with alpha, not with alpha over rank; training is right",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge 295560059 (PR 1603)",
        layout=ONE,
        why="one rank",
        checks=("merged_weights",),
        where={"layer": 1},
    ),
    _adapter_spec(
        name="merged-shards-swapped",
        summary="the merge puts the shards of an adapter together in the wrong order",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge f1db01131 (PR 2194): the merge with shards of tp",
        layout=TP,
        why="two tp ranks with shards",
        checks=("merged_weights",),
        where={"layer": 1},
    ),
)


_vision_spec = partial(
    FaultSpec,
    fault_class="model",
    stack=STACK_OF_TRAINERS[1],
    data_path=IN_BATCH.name,
    micro_batch_size=2,
    model=ModelConfig(layers=2, vision=VisionConfig()),
    documents=mix("images", TRAIN.seq_length, 2),
)
_positions_spec = partial(
    _vision_spec,
    lane=Lane.METADATA,
    checks=("tokens_placed",),
)
VISION: tuple[FaultSpec, ...] = (
    _positions_spec(
        name="height-and-width-swapped",
        summary="positions of image tokens count columns as rows, and rows as columns",
        modelled_on="B12: the order of axes in NVIDIA-NeMo/Megatron-Bridge get_rope_index",
        layout=ONE,
        why="one rank with an image that is not square",
        where={"field": "position_ids"},
    ),
    _positions_spec(
        name="positions-run-on-over-documents",
        summary="positions along the three axes do not start again at each document of a packed row",
        modelled_on="B12: NVIDIA-NeMo/Megatron-Bridge 9b51264b1 (PR 4532)",
        layout=ONE,
        why="one rank with two documents in a row",
        where={"field": "position_ids", "token": 0},
    ),
    _positions_spec(
        name="positions-of-the-next-cp-rank",
        summary="each context-parallel rank gets the positions of the tokens that the next rank has",
        modelled_on="B13: NVIDIA-NeMo/Megatron-Bridge aba4fb2bf (PR 2932), slices of rows in a vision model",
        layout=CP,
        why="cp 1 splits nothing",
        where={"field": "position_ids"},
    ),
    _vision_spec(
        name="sections-of-time-alone",
        summary="all rotary frequencies follow the time axis, those of height and width too",
        modelled_on="B12: mrope_section, which must match the checkpoint of the model",
        layout=ONE,
        why="one rank with an image",
        lane=Lane.NUMERICS,
        checks=("activations",),
        where={"stage": 0, "layer": 1},
    ),
    _vision_spec(
        name="features-of-the-next-token",
        summary="each image token gets the feature of the one before it",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge PR 5053: features by rank-local image tokens",
        layout=Layout(tp=2),
        why="one rank with an image would do; on two it is named as wrong on the stage, not on a rank",
        lane=Lane.NUMERICS,
        checks=("activations",),
        where={"stage": 0, "layer": 0},
    ),
)
