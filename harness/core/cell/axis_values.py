"""Named values of axes. Their meanings: core/hardware.py, and in features: attention/limits.py,
recompute/node_recompute.py and optimizer/node_distributed.py; of trainers: upstreams/node_trainers.py."""

from __future__ import annotations

from harness.upstreams.table import UPSTREAM_TRAINERS

DTYPES = ("fp32", "bf16")
TE_KINDS = ("te", "te-flash", "te-fused")
KERNELS = (*TE_KINDS, "varlen")  # attention kernels that need CUDA
ATTENTIONS = ("auto", "reference", *KERNELS)
DEVICES = ("auto", "cuda", "cpu")
SPLIT = "full-split"
RECOMPUTE = ("none", "selective", "full", SPLIT)
DISTRIBUTED_OPTIMIZER = ("off", "on", "overlap")
EXPLICIT = "explicit"
GROUPS = ("global", EXPLICIT)
LR_DECAY_STYLES = ("constant", "linear", "cosine", "inverse-square-root", "WSD")
WSD_DECAY_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")
WEIGHT_DECAY_STYLES = ("constant", "linear", "cosine")
HARNESS = "harness"  # the harness's own training loop
TRAINERS = [HARNESS, *UPSTREAM_TRAINERS]  # and those of plug-ins
BUILT_IN_TRAINERS = (*TRAINERS,)
BUILDERS = [""]  # of models: "" for the harness, and those of plug-ins
