"""Faults of class canary: the training steps stay within their bounds, and only a canary leg shows the fault."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.outcomes import Lane
from harness.core.packing.documents import DocumentsConfig
from harness.plan.faults.spec import HANG_DEADLINE_S, FaultSpec

_ONE = Layout()
_TP = Layout(tp=2, sp=True)
# Three documents per row, so that training never has a pack of many documents.
_THREE = DocumentsConfig(mode="file", max_seq_len=64, lengths=(20,) * 8)
# The longest document comes first in every row, as in packers that sort by length.
_SORTED = DocumentsConfig(mode="file", max_seq_len=64, lengths=(40, 12, 9, 30, 20, 10, 25, 14))

CANARY: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="state-leaks-faintly",
        fault_class="canary",
        summary="a millionth of each document's last state leaks into the first token of the next: below every bound",
        modelled_on="C1: Mamba state without seq_idx; NVIDIA-NeMo/Megatron-Bridge PR 3484, NVIDIA-NeMo/RL PR 2529",
        layout=_ONE,
        why="one rank with more than one document in a row",
        lane=Lane.NUMERICS,
        checks=("isolation",),
        where={"stage": 0, "leg": "isolation", "micro_batch": 0, "document": 1, "culprit": 0},
    ),
    FaultSpec(
        name="segment-table-too-short",
        fault_class="canary",
        summary="the attention kernel handles six documents of a pack, and merges the others into the sixth",
        modelled_on="Megatron-LM dev thd_max_packed_sequences, CUDA graphs with buffers of fixed size; E8",
        layout=_ONE,
        why="one rank; training has three documents in a row",
        documents=_THREE,
        lane=Lane.NUMERICS,
        checks=("repetition",),
        where={"stage": 0, "leg": "repetition", "document": 6, "number": 6, "original": 0},
    ),
    FaultSpec(
        name="kernel-grid-of-the-first-document",
        fault_class="canary",
        summary="attention processes no more tokens of each document than the first document of the pack has",
        modelled_on="B15: verl PR 4611, tables cut short; M18: max_seqlen of the wrong extent",
        layout=_ONE,
        why="one rank; in training the longest document comes first in every row",
        documents=_SORTED,
        lane=Lane.NUMERICS,
        checks=("order",),
        where={"stage": 0, "leg": "order", "document": 1, "number": 1},
    ),
    FaultSpec(
        name="padding-identified-by-token-id",
        fault_class="canary",
        summary="slots whose label is token 0 are treated as padding, whatever the plan says",
        modelled_on="D12: NVIDIA-NeMo/Megatron-Bridge PR 5213; loss masks made from token ids",
        layout=_TP,
        why="documents are padded for sequence parallel",
        lane=Lane.NUMERICS,
        checks=("padding",),
        where={"stage": 0, "leg": "padding"},
    ),
    FaultSpec(
        name="sum-in-another-order-each-time",
        fault_class="canary",
        summary="layer 3 rounds differently in each call, as with atomic additions",
        modelled_on="B20: NVIDIA/TransformerEngine issue 3331, nondeterministic rows in packed context parallelism",
        layout=Layout(pp=2),
        why="two stages, so that stage and layer can be named",
        lane=Lane.NUMERICS,
        checks=("determinism",),
        where={"stage": 0, "rank": 0, "leg": "determinism", "layer": 3},
    ),
    FaultSpec(
        name="truncation-of-unseen-long-documents",
        fault_class="canary",
        summary="a document that is too long loses its head, but all documents of the training fit",
        modelled_on="C3: NVIDIA/Megatron-LM 7952d7eff1; D14: PR 3185, wrong only when truncation happens",
        layout=_ONE,
        why="one rank; no document is longer than seq_length",
        documents=_THREE,
        lane=Lane.NUMERICS,
        checks=("truncation",),
        where={"stage": 0, "leg": "truncation", "field": "tokens", "document": 0, "token": 0},
    ),
    FaultSpec(
        name="packs-cached-by-their-lengths",
        fault_class="canary",
        summary="packs are cached by their document lengths, and reused for other documents of the same lengths",
        modelled_on="D15: NVIDIA-NeMo/Megatron-Bridge 4c0c54c34, cached packs that ignore what they were made from",
        layout=_ONE,
        why="one rank; the lengths repeat from step to step",
        lane=Lane.NUMERICS,
        checks=("document_loss", "isolation"),
        where={"stage": 0, "step": 1, "document": 0},
        also={"isolation": {"leg": "isolation-middle", "document": 2}},
    ),
    FaultSpec(
        name="crash-on-a-pack-of-many",
        fault_class="canary",
        summary="tp rank 1 raises when a pack has more than six documents",
        modelled_on="E8: NVIDIA-NeMo/Megatron-Bridge 4e085c1e4; buffers for a fixed number of documents",
        layout=_TP,
        why="two ranks, to distinguish the rank that failed first from the one that lost its peer",
        lane=Lane.NUMERICS,
        checks=("ended",),
        where={"tp": 1, "rank": 1, "leg": "repetition"},
        deadline_s=HANG_DEADLINE_S,
    ),
)
