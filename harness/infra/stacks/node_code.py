"""What agents of a stack are started with: a copy of the harness's node side, and environment variables."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import harness
from harness.core.stack import ReadyStack

_NODE_SIDE = ("core", "node", "__init__.py")


def agent_environment(stack: ReadyStack, node_code: Path) -> dict[str, str]:
    """Variables of an agent in a stack, in addition to the caller's environment: the stack's, and PYTHONPATH.

    The checkouts come first, then the stack's own PYTHONPATH, then the harness.
    """
    own = stack.requested.env.get("PYTHONPATH", "")
    path = os.pathsep.join([*stack.paths, *([own] if own else []), str(node_code)])
    return {**stack.requested.env, "PYTHONPATH": path, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}


def copy_node_code(target: Path) -> Path:
    """Copy the part of the harness that ranks need, and nothing else, to a folder for another stack's search path.

    The site-packages folder of an installed harness also holds the launcher's packages, which no stack may see.
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
