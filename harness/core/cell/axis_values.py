"""The values of axes that have names. What they mean: packing/documents.py, attention.py, hardware/devices.py,
packing/styles.py."""

from __future__ import annotations

DATA_PATHS = (
    "unpacked",
    "reference",
    "sft",
    "scheduler",
    "skyrl",
    "bridge_offline",
    "bridge_in_batch",
    "bridge_long",
    "rules",
)
FORBIDDEN = (  # cases of the data path `rules`
    "offline-micro-batch-2",
    "in-batch-micro-batch-1",
    "cp-seq-length",
    "cp-mean-loss",
    "cp-average-in-collective",
    "pad-cu-seqlens-free-rows",
    "offline-and-in-batch",
    "pad-cu-seqlens-no-metadata",
    "in-batch-opt-out",
    "megatron-cp-seq-length",
)
DTYPES = ("fp32", "bf16", "fp8")  # fp8 is known, and refused by a rule
TE_KINDS = ("te", "te-flash", "te-fused")
KERNELS = (*TE_KINDS, "varlen")  # of attention; others need no CUDA
ATTENTIONS = ("auto", "reference", *KERNELS)
DEVICES = ("auto", "cuda", "cpu")
