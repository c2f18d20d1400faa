"""What agents of a stack are started with: the copy of the harness's node side, and environment variables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import harness
from harness.core.stack import ReadyStack

_NODE_SIDE = ("core", "node", "__init__.py")


def agent_environment(stack: ReadyStack, node_code: Path) -> dict[str, str]:
    """What an agent in a stack gets in addition to the caller's environment: variables, and the module search path.

    The checkouts come first, then the stack's own PYTHONPATH, then the harness.
    """
    own = stack.asked.env.get("PYTHONPATH", "")
    path = os.pathsep.join([*stack.paths, *([own] if own else []), str(node_code)])
    return {**stack.asked.env, "PYTHONPATH": path, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}


def copy_node_code(target: Path) -> Path:
    """Copy the part of the harness that ranks need, and nothing else, to a folder for another stack's search path.

    Where the harness is installed, its own folder also holds the launcher's packages, which no stack must see.
    """
    source = Path(harness.__file__).resolve().parent
    for name in _NODE_SIDE:
        place = target / "harness" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(source / name, place)
    return target
