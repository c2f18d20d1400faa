"""Faults of classes leak and normalisation: the data path is right, the numbers are not."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.outcomes import Lane
from harness.core.packing.documents import DocumentsConfig
from harness.plan.faults.spec import FaultSpec

_ONE = Layout()
_TP = Layout(tp=2, sp=True)
_CP = Layout(cp=2)
_DP = Layout(dp=2)
# A document of one token alone in its row: with cp 2 it is padded to four slots, and rank 1 holds only padding.
_ONE_TOKEN = DocumentsConfig(mode="adversarial", max_seq_len=64, lengths=(62, 1, 64))

OUTPUT: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="output-layer-shard-of-another-tp-rank",
        fault_class="layout",
        summary="tp rank 1 holds the output layer's rows of tp rank 0: every layer is right, the loss is not",
        modelled_on="NVIDIA/Megatron-LM issue 7452 class: parallelism composition; a checkpoint sharded wrongly",
        layout=_TP,
        why="two shards",
        lane=Lane.NUMERICS,
        checks=("document_loss", "step_loss"),
        where={
            "stage": 0,
            "step": 0,
            "document": 0,
            "token": 0,
            "lies_at": ["output layer", "document boundary", "padding"],
        },
    ),
    FaultSpec(
        name="loss-divided-by-documents-per-pack",
        fault_class="normalisation",
        summary="the loss of a pack is divided by its number of documents, as if each were a sample of its own",
        modelled_on="D8: SkyRL 9ef15e374, loss of packed rows averaged over samples; NVIDIA/Megatron-LM a22c40e8d6",
        layout=_ONE,
        why="one rank with packs of different numbers of documents",
        lane=Lane.NUMERICS,
        checks=("document_loss", "step_loss"),
        where={"stage": 0, "step": 0, "ratio": "x 1/documents per pack", "lies_at": ["output layer"]},
    ),
)

LEAK: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="attention-ignores-documents",
        fault_class="leak",
        summary="the attention kernel takes the row for one document; metadata is right",
        modelled_on="C1, C2: NVIDIA-NeMo/RL ed718b47d, packed code path not taken",
        layout=_ONE,
        why="one rank with more than one document in a row",
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss", "repeated_document", "step_loss", "isolation", "repetition", "order"),
        where={"stage": 0, "layer": 1, "document": 1, "token": 0, "lies_at": ["document boundary"]},
        also={
            "isolation": {"leg": "isolation", "document": 1, "culprit": 0},
            "repetition": {"document": 1, "number": 1},
        },
    ),
    FaultSpec(
        name="attention-ignores-documents-in-one-layer",
        fault_class="leak",
        summary="the same in layer 5 alone",
        modelled_on="C1: state leaks in some layer types only (Megatron-Bridge PR 3484, SkyRL b0f74aca4)",
        layout=Layout(pp=2),
        why="two stages, so that stage and layer can be named",
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 1, "layer": 5, "document": 1, "token": 0, "lies_at": ["document boundary"]},
    ),
    FaultSpec(
        name="attention-ignores-documents-in-bf16",
        fault_class="leak",
        summary="layer 2 of a bf16 cell takes the row for one document: more than rounding makes of nothing",
        modelled_on="C2: NVIDIA-NeMo/RL ed718b47d, packed code path not taken; training runs are bf16",
        layout=_TP,
        why="two tp ranks, whose sums in bf16 differ from those of one",
        dtype="bf16",
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss"),
        where={"stage": 0, "layer": 2, "document": 1, "token": 0},
    ),
    FaultSpec(
        name="kernel-boundary-off-by-one-on-one-tp-rank",
        fault_class="leak",
        summary="on the heads of tp rank 1, each document's first token is taken for the last of the one before",
        modelled_on="B20, B21: NVIDIA/TransformerEngine issues 3331 and 1930, kernels that misread offsets",
        layout=_TP,
        why="two tp ranks: half of the heads are right",
        lane=Lane.NUMERICS,
        checks=("activations", "document_loss", "isolation", "padding"),
        where={"stage": 0, "layer": 1, "document": 1, "token": 0, "lies_at": ["document boundary", "padding"]},
        also={"padding": {"leg": "padding", "document": 1}},
    ),
)

NORMALISATION: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="gradients-times-cp",
        fault_class="normalisation",
        summary="gradients are cp times too large; every loss is right",
        modelled_on="D4: NVIDIA/Megatron-LM 3bdcbbbe5d; SkyRL's gradient norm test",
        layout=_CP,
        why="cp 1 would hide the factor",
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0, "ratio": "x cp"},
    ),
    FaultSpec(
        name="gradient-shard-of-one-tp-rank-doubled",
        fault_class="normalisation",
        summary="tp rank 1 counts the gradient of its shard of one linear layer twice; every loss of the step is right",
        modelled_on="NVIDIA/Megatron-LM issue 7452 class: parallelism composition; a shard reduced twice",
        layout=Layout(tp=2, pp=2, sp=True),
        why="two shards, and two stages so that the place can be named",
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"stage": 1, "tp": 1, "layer": 4, "lies_at": ["stage boundary", "tp shard"]},
    ),
    FaultSpec(
        name="loss-averaged-per-micro-batch",
        fault_class="normalisation",
        summary="the loss is averaged per micro-batch, so tokens of short micro-batches weigh more",
        modelled_on="D9: NVIDIA/Megatron-LM a22c40e8d6; 1.6",
        layout=_ONE,
        why="one rank with micro-batches of unequal token counts",
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    FaultSpec(
        name="token-count-of-one-cp-rank-lost",
        fault_class="normalisation",
        summary="cp rank 1 adds its loss but not its tokens to the denominator",
        modelled_on="D8, D9: SkyRL 9ef15e374, NVIDIA/Megatron-LM a22c40e8d6",
        layout=_CP,
        why="needs a second rank whose tokens count",
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    FaultSpec(
        name="nan-on-a-fully-masked-shard",
        fault_class="normalisation",
        summary="a cp rank without a token that counts divides zero by zero",
        modelled_on="D5: NVIDIA-NeMo/Megatron-Bridge rule B2 (159ddad31)",
        layout=_CP,
        why="with cp 2, a document of one token leaves rank 1 only padding",
        documents=_ONE_TOKEN,
        global_batch=3,
        lane=Lane.NUMERICS,
        checks=("finiteness",),
        where={"step": 0},
    ),
    FaultSpec(
        name="norm-gradients-not-reduced-over-tp",
        fault_class="normalisation",
        summary="under sequence parallel the gradients of norm weights stay local to each tp rank",
        modelled_on="NVIDIA/Megatron-LM issue 7452 class: parallelism composition; finalize_model_grads",
        layout=_TP,
        why="sequence parallel needs tp 2",
        lane=Lane.NUMERICS,
        checks=("replica_gradients", "parameter_gradients"),
        where={"stage": 0, "tp": 1, "parameter": "decoder.layers.0.input_layernorm.weight"},
    ),
    FaultSpec(
        name="norm-gradients-reduced-twice-over-tp",
        fault_class="normalisation",
        summary="gradients of norm weights, already whole on every tp rank, are summed over tp once more",
        modelled_on="NVIDIA/Megatron-LM issue 7452 class: parallelism composition; finalize_model_grads",
        layout=_TP,
        why="two tp ranks",
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"stage": 0, "layer": 1, "parameter": "decoder.layers.0.input_layernorm.weight"},
    ),
    FaultSpec(
        name="gradients-not-reduced-over-dp",
        fault_class="normalisation",
        summary="every data-parallel replica steps with its own gradients",
        modelled_on="TrainCheck (OSDI 2025) class: replicas drift apart silently",
        layout=_DP,
        why="two replicas",
        lane=Lane.NUMERICS,
        checks=("replica_gradients", "parameter_gradients", "grad_norm"),
        where={"dp": 1, "ranks": [1]},
    ),
    FaultSpec(
        name="attention-backward-not-reduced-over-cp",
        fault_class="normalisation",
        summary="backward of the key and value exchange drops what other cp ranks contribute; losses are right",
        modelled_on="D16: NVIDIA-NeMo/Megatron-Bridge 1d65d5756, all-gather backward without all-reduce",
        layout=_CP,
        why="needs a second cp rank to contribute",
        lane=Lane.NUMERICS,
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
)
