"""Named values of axes. Their meanings: attention.py, hardware/devices.py; node/probe/model/recompute.py,
node/probe/model/distributed_optimizer.py, node/trainers."""

from __future__ import annotations

DTYPES = ("fp32", "bf16", "fp8")  # a rule rejects fp8
TE_KINDS = ("te", "te-flash", "te-fused")
KERNELS = (*TE_KINDS, "varlen")  # attention kernels that need CUDA
ATTENTIONS = ("auto", "reference", *KERNELS)
DEVICES = ("auto", "cuda", "cpu")
RECOMPUTE = ("none", "selective", "full")
DISTRIBUTED_OPTIMIZER = ("off", "on", "overlap")
HARNESS = "harness"  # the harness's own training loop
TRAINERS = (HARNESS, "megatron")
