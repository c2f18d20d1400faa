"""Loads scripts that belong to no package: those of benchmarks/ and scripts/."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load_script(path: Path) -> ModuleType:
    """The script as a new module. It may import what is in its folder, as it does when it is run."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        patch.setitem(sys.modules, path.stem, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
    return module
