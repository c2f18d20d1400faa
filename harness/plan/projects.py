"""Upstream projects that a stack can take from a git checkout, and what their code needs to be imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Project:
    modules: tuple[str, ...]  # those that a checkout of it must provide
    folders: tuple[str, ...]  # of the checkout, put on the module search path
    needs: tuple[str, ...]  # what it imports, to make an environment when a stack names no packages


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
        needs=("numpy", "packaging", "six", "regex", "einops", "pyyaml", "pydantic"),
    ),
    "megatron-bridge": Project(modules=("megatron.bridge",), folders=("src",), needs=()),
    "skyrl": Project(modules=("skyrl",), folders=("",), needs=()),
    "skyrl-train": Project(modules=("skyrl_train",), folders=("skyrl-train",), needs=()),
}

# Imported by modules that runs use, but not declared by the distribution (megatron.training of the core wheels).
UNDECLARED: dict[str, tuple[str, ...]] = {"megatron-core": ("six", "regex", "pyyaml")}
