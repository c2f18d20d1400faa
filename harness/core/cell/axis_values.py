"""The values of axes that have names. What they mean: attention.py, hardware/devices.py; node/probe/model/recompute.py,
node/probe/model/distributed_optimizer.py."""

from __future__ import annotations

DTYPES = ("fp32", "bf16", "fp8")  # fp8 is known, and refused by a rule
TE_KINDS = ("te", "te-flash", "te-fused")
KERNELS = (*TE_KINDS, "varlen")  # of attention; others need no CUDA
ATTENTIONS = ("auto", "reference", *KERNELS)
DEVICES = ("auto", "cuda", "cpu")
RECOMPUTE = ("none", "selective", "full")
DISTRIBUTED_OPTIMIZER = ("off", "on", "overlap")
