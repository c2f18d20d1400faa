"""Upstream projects that a stack can take from a git checkout, and what their code needs to be imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Project:
    modules: tuple[str, ...]  # those that a checkout of it must provide
    folders: tuple[str, ...]  # of the checkout, put on the module search path
    # What runs need to import it, in addition to torch: added to the packages of the stack. Neither the Megatron that a
    # project uses nor Transformer Engine for Megatron-Bridge: a lower layer says which release of them to take.
    needs: tuple[str, ...]


PROJECTS: dict[str, Project] = {
    "megatron-lm": Project(
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
        folders=("",),
        needs=("numpy", "packaging", "six", "regex", "einops", "pyyaml", "pydantic", "omegaconf"),
    ),
    "megatron-bridge": Project(
        modules=("megatron.bridge",),
        folders=("src",),
        needs=(
            "datasets",
            "megatron-energon",
            "nvidia-modelopt",
            "omegaconf",
            "requests",
            "tensorboard",
            "transformers",
        ),
    ),
    "skyrl": Project(modules=("skyrl",), folders=("",), needs=("cloudpathlib", "loguru", "pydantic")),
    "skyrl-train": Project(modules=("skyrl_train",), folders=("skyrl-train",), needs=("loguru",)),
}

# Imported by modules that runs use, but not declared by the distribution (megatron.training of the core wheels).
UNDECLARED: dict[str, tuple[str, ...]] = {"megatron-core": ("six", "regex", "pyyaml")}
