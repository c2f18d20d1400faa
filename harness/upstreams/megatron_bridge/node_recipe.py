"""Builds a recipe of Megatron-Bridge in the environment of a stack. A program:

    python -m harness.upstreams.megatron_bridge.node_recipe NAME

The last line of stdout is JSON: `yaml`, the recipe as a run of it dumps its configuration, and `ranks`; or `problem`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
import types
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from harness.runtime.device import cpu_stubs, trainer_stubs
from harness.runtime.load import load
from harness.runtime.process import end_process
from harness.upstreams.node_asking import device_of

_PACKAGE = "megatron.bridge.recipes"
_DEFINED = re.compile(r"(?m)^def ([a-z]\w*_config)\(|\bas ([a-z]\w*_config)\b")
_RANKS = re.compile(r"_(\d+)gpus?_")  # upstream names a recipe by the GPUs that it is made for
_NO_RECIPES = "utils"
_NEAREST = 6
_INSTEAD = "give the run_config.yaml of a run of it instead"


def main(name: str) -> dict[str, Any]:
    """Return the answer. No file of a model is downloaded unless HF_HUB_OFFLINE=0."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    load()
    if device_of("auto").kind == "cpu":
        cpu_stubs.install()
        trainer_stubs.install()
    folder = _without_the_others()
    modules = modules_of(folder)
    if name not in modules:
        near = difflib.get_close_matches(name, modules, n=_NEAREST, cutoff=0)
        return {"problem": f"no recipe {name!r} among the {len(modules)} of this stack; nearest: {', '.join(near)}"}
    try:
        recipe = getattr(importlib.import_module(modules[name]), name)
    except ImportError as error:
        return {"problem": f"its module {modules[name]} needs what this stack does not have: {error}; {_INSTEAD}"}
    needed = [
        parameter.name
        for parameter in inspect.signature(recipe).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if needed:
        return {"problem": f"it needs arguments ({', '.join(needed)}), which a name does not say; {_INSTEAD}"}
    try:
        configuration = recipe()
    except Exception as error:  # whatever a recipe does: most read a model's config.json from Hugging Face
        return {"problem": _why_not_built(error)}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "run_config.yaml"
        configuration.to_yaml(str(file))
        made_for = _RANKS.search(recipe.__name__)
        return {"yaml": file.read_text(encoding="utf-8"), "ranks": int(made_for[1]) if made_for else None}


def _without_the_others() -> Path:
    """Return the folder of recipes, with a package in place of upstream's that imports none of them.

    Upstream's imports all families, some of which need packages that others do not, such as diffusers.
    """
    bridge = importlib.import_module("megatron.bridge")
    folder = Path(next(iter(bridge.__path__))) / "recipes"
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [str(folder)]
    sys.modules[_PACKAGE] = package
    return folder


def modules_of(folder: Path) -> dict[str, str]:
    """Return the recipes in a folder by name, each with the module that defines it or gives it that name."""
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*/**/*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        if parts[0] == _NO_RECIPES:
            continue
        module = ".".join((_PACKAGE, *(part for part in parts if part != "__init__")))
        for defined, alias in _DEFINED.findall(file.read_text(encoding="utf-8")):
            found.setdefault(defined or alias, module)
    return found


def _why_not_built(error: Exception) -> str:
    words = " ".join(str(error).split())
    if "huggingface.co" in words or "offline" in words.lower():
        return (
            f"it reads a model's config.json from Hugging Face, which is not in the cache here ({words[:200]}); "
            f"download it, e.g. `hf download MODEL config.json`, or set HF_HUB_OFFLINE=0, or {_INSTEAD}"
        )
    return f"it cannot be built here: {type(error).__name__}: {words[:500]}; {_INSTEAD}"


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        answer = main(sys.argv[1])
    print(json.dumps(answer))
    end_process(0)
