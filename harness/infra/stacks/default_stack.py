"""The stack `default`: the environment that the launcher itself runs in."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from harness.core.errors import InputError, Problem


def require_torch() -> None:
    """InputError where the launcher is installed without torch: agents of cells without a stack cannot start there."""
    if find_spec("torch") is None:
        raise InputError(
            Problem(
                message="cells without a stack train in the environment of the harness, which has no torch",
                found=sys.prefix,
                hint="install packing-harness[node] there, or name a stack in the matrix",
            )
        )
