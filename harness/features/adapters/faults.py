"""Faults in adapters. Their cells run on the stack of upstream's trainers, which has Megatron-Bridge."""

from __future__ import annotations

from functools import partial

from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Lane
from harness.faults.spec import DP, ONE, STACK_OF_TRAINERS, TP, FaultSpec
from harness.features.adapters.config import PeftConfig

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
