"""Faults in experts and their routers."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Lane
from harness.core.packing.options import PackingOptions
from harness.faults.spec import CP, DP, ONE, TP, FaultSpec
from harness.features.experts.config import MoeConfig

_EXPERTS = ModelConfig(layers=2, moe=MoeConfig())
_BALANCED_STRONGLY = ModelConfig(layers=2, moe=MoeConfig(aux_loss="aux_loss", aux_loss_coeff=0.1))
_MASKED = ModelConfig(layers=2, moe=MoeConfig(aux_loss="aux_loss", aux_loss_coeff=0.1, padding_mask=True))
_PER_ROW = ModelConfig(layers=2, moe=MoeConfig(aux_loss="seq_aux_loss", aux_loss_coeff=0.1))


ROUTERS: tuple[FaultSpec, ...] = (
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
        name="dense-gradients-scaled-as-experts",
        fault_class="model",
        summary="gradients of the dense first layer are divided by ep once more, as those of experts are",
        modelled_on="NVIDIA/Megatron-LM DistributedDataParallel: which buffer a parameter's gradient is put into",
        layout=Layout(dp=2, ep=2),
        why="two ranks that share the experts of a layer, after a layer without",
        model=ModelConfig(layers=2, moe=MoeConfig(layer_freq="[0,1]")),
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"stage": 0, "layer": 1, "parameter": "decoder.layers.0.mlp.linear_fc1.weight"},
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
