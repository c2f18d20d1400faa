"""Faults of class model: routers and experts beyond those of models.py."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig, MoeConfig
from harness.core.outcomes import Lane
from harness.plan.faults.spec import FaultSpec

_BIASED = ModelConfig(layers=2, moe=MoeConfig(score_function="sigmoid", expert_bias=True, bias_rate=0.01))
_LIMITED = ModelConfig(layers=2, moe=MoeConfig(capacity_factor=1.0))

_BALANCED = ModelConfig(layers=2, moe=MoeConfig(aux_loss="aux_loss"))

EXPERTS: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="expert-bias-of-one-replica",
        fault_class="model",
        summary="replica 1 changes the biases of its experts by its own tokens, not by those of all replicas",
        modelled_on="NVIDIA/Megatron-LM aa786b72c0 (PR 4782): the tokens of experts are summed over another group",
        layout=Layout(dp=2),
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
        layout=Layout(dp=2),
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
        layout=Layout(dp=2),
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
        layout=Layout(dp=2),
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
        layout=Layout(dp=2),
        why="two replicas, and rows that the control does not have",
        data_path="sft",
        model=_BALANCED,
        lane=Lane.NUMERICS,
        checks=("aux_loss", "parameter_gradients", "gradient_scale", "grad_norm"),
        where={"stage": 0, "layer": 1, "step": 0},
    ),
)
