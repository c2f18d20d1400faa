"""Upstream projects that a stack can take from a git checkout, and what their code needs to be imported."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Project:
    modules: tuple[str, ...]  # that a checkout of it must provide
    folders: tuple[str, ...]  # of the checkout, put on the module search path
    # Packages that a run needs, besides torch, to import the modules; added to those of the stack. Without the Megatron
    # that a project uses, and Transformer Engine for Megatron-Bridge: a lower layer chooses their releases.
    needs: tuple[str, ...]

    @property
    def signs(self) -> list[str]:
        """Paths in a checkout, one of which each checkout of the project has: its first module."""
        first = self.modules[0].replace(".", "/")
        return [f"{folder}/{path}".lstrip("/") for folder in self.folders for path in (first, f"{first}.py")]


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
    "nemo-rl": Project(
        modules=("nemo_rl",),
        folders=("",),
        needs=(
            "hydra-core",
            "matplotlib",
            "mlflow-skinny",
            "pillow",
            "prometheus-client",
            "pydantic",
            "pyzmq",
            "ray",
            "rich",
            "swanlab",
            "transformers",
            "uvicorn",
            "wandb",
        ),
    ),
    "skyrl-train": Project(modules=("skyrl_train",), folders=("skyrl-train",), needs=("loguru",)),
}

# Imported by modules that runs use, but not declared by the distribution (megatron.training in megatron-core wheels).
UNDECLARED: dict[str, tuple[str, ...]] = {"megatron-core": ("six", "regex", "pyyaml")}
