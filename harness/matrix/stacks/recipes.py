"""The projects that a stack can check out, and recipes: stacks that come with the harness, by name. Pure.

A project says what its code needs to be imported. A matrix may use a recipe without defining it. Each recipe is run by
a shipped matrix, with these pins; tests/matrix/stacks/test_recipes.py checks which.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.core.stack import stack_name
from harness.matrix.problems import KeyPath, Problems


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project that stacks can check out, and where its modules are."""

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


Layer = Mapping[str, Any]  # as in a matrix file

WORKING_TREE = "working-tree"
TORCH = "torch==2.15.0"  # that of constraints.txt

_UPSTREAM = "https://github.com/NVIDIA/Megatron-LM"
_TORCH: Layer = {"packages": [TORCH]}
_BRIDGE_NEEDS: Layer = {
    "packages": [
        "datasets==5.2.0",
        "megatron-energon==7.4.1",
        "nvidia-modelopt==0.47.0",
        "omegaconf==2.3.1",
        "requests==2.34.2",
        "tensorboard==2.21.0",
    ]
}
# Megatron-Bridge imports Transformer Engine; it is compiled once, without a GPU.
_ENGINE: Layer = {
    "packages": ["transformer-engine==2.20.2", "transformer-engine-cu13==2.20.2", "transformer-engine-torch==2.20.2"],
    "no_deps": True,
}
_ENGINE_NEEDS: Layer = {
    "packages": ["nvidia-curand", "einops==0.8.2", "onnx==1.23.2", "onnxscript==0.7.2", "pydantic==2.14.3"]
}
_BRIDGE_BASE = (_BRIDGE_NEEDS, _ENGINE, _ENGINE_NEEDS, _TORCH)
# megatron.bridge.training.pretrain imports these as well, from 0.6 on.
_PRETRAIN: tuple[Layer, ...] = (
    {"packages": ["nvidia-resiliency-ext==0.7.0"], "no_deps": True},
    {"packages": ["defusedxml==0.7.1", "nvidia-ml-py==13.615.71", "psutil==7.2.2"]},
)
_MEGATRON: Layer = {"packages": ["megatron-core==0.19.2", "transformers==5.12.1"]}
_BRIDGE = (_MEGATRON, *_BRIDGE_BASE, *_PRETRAIN)  # what Megatron-Bridge 0.6.2 runs on
_SKYRL = (  # what SkyRL 0.4.0 runs on
    {"packages": ["megatron-bridge==0.6.2"], "no_deps": True},
    *_BRIDGE,
    {"packages": ["skyrl-gym==0.4.0"], "no_deps": True},
    {
        "packages": [
            "ray==2.57.0",
            "cloudpathlib==0.26.0",
            "loguru==0.7.3",
            "jaxtyping==0.3.11",
            "orjson==3.13.0",
            "pybase64==1.5.1",
            "torchdata==0.11.0",
            "func-timeout==4.3.5",
        ]
    },
)
_NEMO_RL = (
    {"packages": ["megatron-bridge==0.6.2"], "no_deps": True},
    {"packages": ["megatron-core==0.19.2", "transformers==5.8.1"]},
    *_BRIDGE_BASE,
)
# For the data of Megatron-LM's own trainer.
_MEGATRON_LM: tuple[Layer, ...] = (
    {"packages": ["datasets==5.2.0", "transformers==5.12.1", "psutil==7.2.2"]},
    _TORCH,
)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A stack that comes with the harness."""

    doc: str
    layers: tuple[Layer, ...]
    matrices: tuple[str, ...] = ()  # shipped ones that run it; without: only by who names it


@dataclass(frozen=True)
class WorkingTree:
    """The checkout that the launcher was started in."""

    folder: str
    project: str  # a key of PROJECTS
    megatron: str = ""  # of Megatron-Bridge: the folder of its submodule Megatron-LM, or the commit if that is empty


def _core(version: str, *matrices: str, env: Mapping[str, str] | None = None) -> Recipe:
    layer: Layer = {"packages": [f"megatron-core=={version}"]} | ({"env": env} if env else {})
    return Recipe(doc=f"megatron-core {version}, the wheel", layers=(layer, _TORCH), matrices=matrices)


def _bridge(version: str, core: str, transformers: str, *matrices: str) -> Recipe:
    layers: tuple[Layer, ...] = (
        {"packages": [f"megatron-bridge=={version}"], "no_deps": True},
        {"packages": [f"megatron-core=={core}", f"transformers=={transformers}"]},
        *_BRIDGE_BASE,
    )
    return Recipe(doc=f"Megatron-Bridge {version} on megatron-core {core}", layers=layers, matrices=matrices)


RECIPES: dict[str, Recipe] = {
    "core-0.14.0": _core("0.14.0", "releases"),
    "core-0.15.3": _core("0.15.3", "real_faults", env={"TORCH_CUDA_ARCH_LIST": "9.0"}),  # to import it without a GPU
    "core-0.16.1": _core("0.16.1", "releases"),
    "core-0.17.1": _core("0.17.1", "releases", "issue_4092"),
    "core-0.18.2": _core("0.18.2", "releases", "nightly"),
    "core-0.19.2": _core("0.19.2", "releases", "nightly"),
    "bridge-0.4.2": _bridge("0.4.2", "0.17.1", "5.3.0", "releases"),
    "bridge-0.5.0": _bridge("0.5.0", "0.18.2", "5.8.1", "releases"),
    "bridge-0.6.2": Recipe(
        doc="Megatron-Bridge 0.6.2 on megatron-core 0.19.2, and its trainer",
        layers=({"packages": ["megatron-bridge==0.6.2"], "no_deps": True}, *_BRIDGE),
        matrices=("trainer_bridge", "adapters", "nightly"),
    ),
    "skyrl-0.4.0": Recipe(
        doc="SkyRL 0.4.0 on Megatron-Bridge 0.6.2, and its trainer",
        layers=({"packages": ["skyrl==0.4.0"], "no_deps": True}, *_SKYRL),
        matrices=("trainer_skyrl", "clean"),
    ),
    "main": Recipe(
        doc="the newest commit of Megatron-LM's branch main",
        layers=(
            {"checkout": _UPSTREAM, "ref": "main", "package": "megatron-lm"},
            *_MEGATRON_LM,
        ),
    ),
    WORKING_TREE: Recipe(
        doc="the checkout of Megatron-LM, Megatron-Bridge, SkyRL or NeMo-RL that you are in, with its changes",
        layers=(),
        matrices=("gate",),
    ),
}

# What a checkout of a project runs on.
_BENEATH: dict[str, tuple[Layer, ...]] = {
    "megatron-lm": _MEGATRON_LM,
    "megatron-bridge": _BRIDGE,
    "skyrl": _SKYRL,
    "skyrl-train": _SKYRL,
    "nemo-rl": _NEMO_RL,
}


TreeOf = Callable[[], WorkingTree]


def recipe_layers(name: str, tree_of: TreeOf) -> list[dict[str, Any]]:
    """Return the layers of a recipe, as in a matrix file, the top one first."""
    if name != WORKING_TREE:
        return [dict(layer) for layer in RECIPES[name].layers]
    tree = tree_of()
    checkouts = [{"checkout": tree.folder, "package": tree.project}]
    if tree.megatron:
        megatron = (
            {"checkout": tree.megatron} if "/" in tree.megatron else {"checkout": _UPSTREAM, "ref": tree.megatron}
        )
        checkouts.append({**megatron, "package": "megatron-lm"})
    return [*checkouts, *(dict(layer) for layer in _BENEATH[tree.project])]


def layers_named(text: str, at: KeyPath, problems: Problems, tree_of: TreeOf) -> list[Any]:
    """Return the layers of the recipe that a definition names; [None], after adding the problem, if there is none."""
    name = recipe_name(text)
    if name in RECIPES:
        return recipe_layers(name, tree_of)
    problems.add(at, "no such recipe", found=repr(text), allowed=", ".join(RECIPES), hint=near_recipe(name))
    return [None]


def recipes_for(requirements: Iterable[str]) -> list[str]:
    """Return the recipes for a package among these, without those that the requirements have as a whole."""
    listed = set(requirements)
    projects = {_project(requirement) for requirement in listed}
    return [
        name
        for name, recipe in RECIPES.items()
        if recipe.layers
        and projects & {_project(requirement) for requirement in recipe.layers[0].get("packages", ())}
        and not listed >= {requirement for layer in recipe.layers for requirement in layer.get("packages", ())}
    ]


def _project(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower()


def recipe_name(text: str) -> str:
    """Return the name as the table has it: core-0.19.2 for megatron-core==0.19.2; unchanged if it cannot be a name."""
    try:
        return stack_name(text)
    except ValueError:
        return text


def near_recipe(name: str) -> str | None:
    """Return e.g. "did you mean 'core-0.19.2'?"; None if no recipe has a similar name."""
    near = difflib.get_close_matches(name, RECIPES, n=1)
    return f"did you mean {near[0]!r}?" if near else None
