"""NeMo-RL as a project that stacks can check out."""

from __future__ import annotations

from harness.upstreams.megatron_bridge.project import BENEATH, NEWEST
from harness.upstreams.nemo_rl.spec import NEMO_RL as DATA_PATH
from harness.upstreams.project import Project

NEMO_RL = Project(
    name="nemo-rl",
    title="NeMo-RL",
    distribution="nemo-rl",
    url="https://github.com/NVIDIA-NeMo/RL",
    repositories=("RL", "NeMo-RL"),
    modules=("nemo_rl",),
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
    runs_on=(NEWEST, {"packages": ["megatron-core==0.19.2", "transformers==5.8.1"]}, *BENEATH),
    data_path=DATA_PATH.name,
    gate="gate_nemo_rl",
)
