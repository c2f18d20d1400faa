"""verl as a project that stacks can check out."""

from __future__ import annotations

from harness.upstreams.project import ON_TORCH, Layer, Project
from harness.upstreams.verl.spec import VERL as DATA_PATH


def _runs_on(transformers: str, datasets: str) -> tuple[Layer, ...]:
    return (
        {"packages": ["tensordict==0.10.0"], "no_deps": True},
        {
            "packages": [
                "megatron-core==0.19.2",
                f"transformers=={transformers}",
                f"datasets=={datasets}",
                "ray==2.57.0",
                "hydra-core==1.3.8",
                "codetiming==1.4.0",
                "torchdata==0.11.0",
                "einops==0.8.2",
            ]
        },
        ON_TORCH,
    )


VERL = Project(
    name="verl",
    title="verl",
    distribution="verl",
    url="https://github.com/verl-project/verl",
    repositories=("verl",),
    modules=("verl",),
    # What its engine for Megatron imports on a CPU: neither vLLM nor SGLang.
    needs=(
        "accelerate",
        "cloudpickle",
        "codetiming",
        "datasets",
        "dill",
        "einops",
        "hydra-core",
        "orjson",
        "pandas",
        "peft",
        "pillow",
        "pyvers",
        "ray",
        "tensordict",
        "torchdata",
        "transformers",
    ),
    runs_on=_runs_on("5.8.1", "5.2.0"),
    runs_on_before={"0.9": _runs_on("4.57.1", "4.4.1")},  # most of its commits cannot import transformers 5
    version_file="verl/version/version",
    data_path=DATA_PATH.name,
    options={"calculate_per_token_loss": False},
    gate="gate_verl",
)
