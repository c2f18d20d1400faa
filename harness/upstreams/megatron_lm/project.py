"""Megatron-LM as a project that stacks can check out."""

from __future__ import annotations

from harness.upstreams.megatron_lm.spec import SFT
from harness.upstreams.project import ON_TORCH, Project

MEGATRON_LM = Project(
    name="megatron-lm",
    title="Megatron-LM",
    distribution="megatron-core",
    url="https://github.com/NVIDIA/Megatron-LM",
    repositories=("Megatron-LM",),
    modules=(
        "megatron.core",
        "megatron.training",
        "megatron.legacy",
        "megatron.post_training",
        "megatron.rl",
        "pretrain_gpt",
        "gpt_builders",
        "model_provider",
    ),
    needs=("numpy", "packaging", "six", "regex", "einops", "pyyaml", "pydantic", "omegaconf"),
    # The first layer is for the data of its own trainer.
    runs_on=({"packages": ["datasets==5.2.0", "transformers==5.12.1", "psutil==7.2.2"]}, ON_TORCH),
    data_path=SFT.name,
    gate="gate",
)
