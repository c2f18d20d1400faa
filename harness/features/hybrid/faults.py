"""Faults in recurrent layers."""

from __future__ import annotations

from harness.core.cell.model import ModelConfig
from harness.core.outcomes import Lane
from harness.faults.spec import CP, ONE, TP, FaultSpec

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
