"""The example package, installed as users install a plug-in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.stacks.build import uv_environment
from tests.cli.conftest import harness


@pytest.fixture(scope="session")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, installed from its source by pip's rules."""
    folder = tmp_path_factory.mktemp("plugins") / "site"
    uv = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    constraints = ["--build-constraints", root / "constraints.txt"]
    source = root / "tests" / "plugins" / "example"
    subprocess.run([*uv, *constraints, "--target", folder, source], check=True, env=uv_environment())
    return folder


def plugged(*arguments: str | Path, cwd: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return harness(*arguments, cwd=cwd, env={"PYTHONPATH": str(site)})
