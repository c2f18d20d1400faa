"""Named values of axes. Their meanings: core/hardware.py, and in features: attention/limits.py,
recompute/node_recompute.py and optimizer/node_distributed.py; of trainers: upstreams/node_trainers.py."""

from __future__ import annotations

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
HARNESS = "harness"  # the harness's own training loop
TRAINERS = [HARNESS, "megatron", "bridge", "skyrl"]  # and those of plug-ins
BUILT_IN_TRAINERS = (*TRAINERS,)
BUILDERS = [""]  # of models: "" for the harness, and those of plug-ins
WITH_CHECKPOINTS = ("megatron", "bridge")  # trainers that save and load
WITH_BLENDS = ("megatron",)  # trainers whose rows may be in several files
WITH_COMMAND_LINE = ("megatron",)  # trainers that get arguments of a command line
WITH_FIELDS = ("bridge",)  # trainers that get fields of a configuration, with dotted names
