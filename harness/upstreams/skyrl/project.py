"""SkyRL as a project that stacks can check out: today's layout, and the folder skyrl-train before it."""

from __future__ import annotations

from harness.upstreams.megatron_bridge.project import BENEATH_NEWEST, MEGATRON_BRIDGE, NEWEST
from harness.upstreams.megatron_lm.project import MEGATRON_LM
from harness.upstreams.project import Layer, Pin, Project
from harness.upstreams.skyrl.spec import SKYRL as DATA_PATH

BENEATH: tuple[Layer, ...] = (  # SkyRL 0.4.0
    NEWEST,
    *BENEATH_NEWEST,
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
_PINS = (
    Pin(project=MEGATRON_BRIDGE.name, source="megatron-bridge"),
    Pin(project=MEGATRON_LM.name, source="megatron-core"),
)

SKYRL = Project(
    name="skyrl",
    title="SkyRL",
    distribution="skyrl",
    url="https://github.com/NovaSky-AI/SkyRL",
    repositories=("SkyRL",),
    modules=("skyrl",),
    needs=("cloudpathlib", "loguru", "pydantic"),
    runs_on=BENEATH,
    pins=_PINS,
    data_path=DATA_PATH.name,
    gate="gate_skyrl",
)
SKYRL_TRAIN = Project(
    name="skyrl-train",
    title="SkyRL",
    distribution="skyrl-train",
    url=SKYRL.url,
    repositories=SKYRL.repositories,
    modules=("skyrl_train",),
    folders=("skyrl-train",),
    needs=("loguru",),
    runs_on=BENEATH,
    data_path=DATA_PATH.name,
    gate="gate_skyrl",
)
