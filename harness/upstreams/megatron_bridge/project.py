"""Megatron-Bridge as a project that stacks can check out, and the pins of what runs on it."""

from __future__ import annotations

from harness.upstreams.megatron_bridge.spec import OFFLINE
from harness.upstreams.megatron_lm.project import MEGATRON_LM
from harness.upstreams.project import ON_TORCH, Layer, Pin, Project

_NEEDS: Layer = {
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
BENEATH = (_NEEDS, _ENGINE, _ENGINE_NEEDS, ON_TORCH)  # any release of it, below megatron-core and transformers
# megatron.bridge.training.pretrain imports these as well, from 0.6 on.
_PRETRAIN: tuple[Layer, ...] = (
    {"packages": ["nvidia-resiliency-ext==0.7.0"], "no_deps": True},
    {"packages": ["defusedxml==0.7.1", "nvidia-ml-py==13.615.71", "psutil==7.2.2"]},
)
_MEGATRON: Layer = {"packages": ["megatron-core==0.19.2", "transformers==5.12.1"]}
NEWEST: Layer = {"packages": ["megatron-bridge==0.6.2"], "no_deps": True}
BENEATH_NEWEST = (_MEGATRON, *BENEATH, *_PRETRAIN)

MEGATRON_BRIDGE = Project(
    name="megatron-bridge",
    title="Megatron-Bridge",
    distribution="megatron-bridge",
    url="https://github.com/NVIDIA-NeMo/Megatron-Bridge",
    repositories=("Megatron-Bridge",),
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
    runs_on=BENEATH_NEWEST,
    pins=(Pin(project=MEGATRON_LM.name, submodule="3rdparty/Megatron-LM"),),  # its main needs more than releases have
    data_path=OFFLINE.name,
    documents="uncut",
    gate="gate_bridge",
)
