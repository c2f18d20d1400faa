"""What agents of a stack are started with: a copy of the harness's node side, and environment variables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import harness
from harness.core.errors import InputError, Problem
from harness.core.plugins import Plugin
from harness.core.run.run_dir import RunDir, refuse_links_below, text_of
from harness.core.serialization import from_jsonable, loads
from harness.core.stack import ReadyStack

_NODE_SIDE = ("core", "node", "oracle", "__init__.py")


def agent_environment(stack: ReadyStack, node_code: Path) -> dict[str, str]:
    """Variables of an agent in a stack, in addition to the caller's environment: the stack's, and PYTHONPATH.

    The checkouts come first, then the stack's own PYTHONPATH, then the harness.
    """
    own = stack.requested.env.get("PYTHONPATH", "")
    path = os.pathsep.join([*stack.paths, *([own] if own else []), str(node_code)])
    return {**stack.requested.env, "PYTHONPATH": path, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}


def plugin_packages(run: RunDir) -> tuple[str, ...]:
    """Packages of plug-ins that the ranks of a run load."""
    if not run.plugins.exists():
        return ()
    plugins = from_jsonable(tuple[Plugin, ...], loads(text_of(run.plugins)))
    return tuple(dict.fromkeys(name for plugin in plugins for name in plugin.packages))


def copy_node_code(target: Path, packages: Iterable[str] = ()) -> Path:
    """Copy the part of the harness that ranks need, and nothing else, to a folder for another stack's search path.

    `packages`: top-level packages, or modules, of plug-ins, which are copied beside it.

    The site-packages folder of an installed harness also holds the launcher's packages, which no stack may see.
    """
    refuse_links_below(target)
    source = Path(harness.__file__).resolve().parent
    for name in _NODE_SIDE:
        place = target / "harness" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(source / name, place)
    for name in packages:
        _copy_package(name, target)
    return target


def _copy_package(name: str, target: Path) -> None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise InputError(Problem(message=f"no package {name}, which a plug-in needs", hint="`harness list plugins`"))
    file = Path(spec.origin)
    if spec.submodule_search_locations is None:
        shutil.copy2(file, target / file.name)
    else:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(file.parent, target / name, ignore=ignored, dirs_exist_ok=True)
