"""The first matrix, for a machine: cells that its cores or GPUs run in seconds, on the software that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.text import counted
from harness.infra.scaffold.machine import Machine
from harness.infra.templating import environment
from harness.plan.stacks.recipes import RECIPES, WORKING_TREE

NEWEST = [name for name in RECIPES if name.startswith("core-")][-1]
_LAYOUTS = ((1, 1, 1), (1, 1, 2), (2, 2, 1))  # tp, pp, cp
_LARGE = ((2, 4, 1), (2, 2, 2))  # with middle pipeline stages, and with all three
_FOR_LARGE = 8  # ranks
_FOR_ALL = 4  # ranks, without them
# Project of a checkout -> data path that tests it, and a mix of documents that it takes in every layout.
_PATHS = {
    "megatron-lm": ("sft", "adversarial"),
    "megatron-bridge": ("bridge_offline", "uncut"),
    "skyrl": ("skyrl", "adversarial"),
    "skyrl-train": ("skyrl", "adversarial"),
    "nemo-rl": ("nemo_rl", "adversarial"),
}


def matrix_text(machine: Machine, name: str, path: Path, cluster: bool) -> str:
    """The file's text. `cluster`: whether there is a profile, too, whose nodes may have other devices."""
    project = machine.tree.project if machine.tree else "megatron-lm"
    data_path, documents = _PATHS[project]
    stack, why = _software(machine)
    on_cpu = machine.gpus < _FOR_ALL and not cluster
    large = (machine.cores if on_cpu else machine.gpus) >= _FOR_LARGE
    values: dict[str, Any] = {
        "cores": counted(machine.cores, "core"),
        "gpus": f" and {counted(machine.gpus, 'GPU')}" if machine.gpus else "",
        "path": path,
        "name": name,
        "batch": 8,
        "documents": documents,
        "layouts": [*_LAYOUTS, *(_LARGE if large else ())],
        "more": [] if large else _LARGE,
        "packing": ["reference", data_path],
        "stack": stack,
        "why": why,
        "device": "cpu" if on_cpu and machine.gpus else "",
        "device_why": f"Each rank needs a GPU, and this machine has {machine.gpus}; `auto` uses GPUs.",
    }
    folder = Path(__file__).parent / "templates"
    return environment(folder, autoescape=False, finalize=str).get_template("matrix.yaml.j2").render(values)


def _software(machine: Machine) -> tuple[str, str]:
    """The stack, empty for the launcher's environment, and why it is this one."""
    if machine.tree:
        return (
            WORKING_TREE,
            f"The code under test: the checkout that you are in ({machine.tree.project}), with your changes.",
        )
    if machine.megatron:
        return "", f"The code under test: megatron-core {machine.megatron}, which is installed beside the harness."
    return NEWEST, f"The code under test: {RECIPES[NEWEST].doc}; its environment is made once."
