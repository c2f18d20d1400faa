"""Finds interpreters by running them: a version manager's `python3.12` can be a stub that fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.upstream import heads

OLDEST_PYTHON = (3, 10)  # that the probe supports
_PROBE = """
import json, sys, sysconfig
from importlib.metadata import distributions
from importlib.util import find_spec
def home(name):
    try:
        spec = find_spec(name)
    except Exception:
        return None
    places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or ()) if spec else []
    return places[0] if places else None
names = {d.metadata["Name"]: d.version for d in distributions() if d.metadata["Name"]}
homes = {name: home(name) for name in sys.argv[1:]}
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "prefix": sys.prefix, "executable": sys.executable,
    "packages": names, "modules": {name: place for name, place in homes.items() if place}}))
"""
_REDIRECTING = frozenset({"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"})


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """Facts that an interpreter reports, isolated from the caller's environment."""

    executable: str
    version: str
    prefix: str
    packages: dict[str, str] = field(default_factory=dict)  # distribution -> version
    modules: dict[str, str] = field(default_factory=dict)  # module of heads() that it has -> file


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without the variables that change where another interpreter looks for
    modules.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in _REDIRECTING}
    return {**inherited, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1", **(more or {})}


def ask(python: str) -> Interpreter:
    """Run an interpreter for its version, packages and modules; InfrastructureError when it does not run."""
    argv = [python, "-I", "-c", _PROBE, *heads()]
    try:
        done = subprocess.run(
            argv, env=clean_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{python} does not run: {error}") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise InfrastructureError(f"{python} does not run: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    try:
        return Interpreter(**json.loads(lines[-1]))
    except (TypeError, ValueError) as error:
        raise InfrastructureError(f"{python} is not Python: it printed {lines[-1][:200]!r}") from error


def find(versions: tuple[str, ...]) -> tuple[str, str]:
    """Return an interpreter of the first version that is installed here, and that version.

    InfrastructureError naming what was tried.
    """
    tried = []
    for version in versions:
        for python in candidates(version):
            if runs(python, version):
                return python, version
            tried.append(python)
    raise InfrastructureError(
        f"no working Python {' or '.join(versions)} was found; tried {', '.join(tried) or 'nothing'}; install one, "
        "e.g. with `uv python install`"
    )


def candidates(version: str) -> Iterator[str]:
    """Yield existing files that may be a Python of a version."""
    if f"{sys.version_info[0]}.{sys.version_info[1]}" == version:
        yield sys.executable
    if on_path := shutil.which(f"python{version}"):
        yield on_path
    home = Path.home()
    roots = dict.fromkeys([os.environ.get("PYENV_ROOT") or str(home / ".pyenv"), str(home / ".pyenv")])
    uv_pythons = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or home / ".local/share/uv/python")
    for folder in (*(Path(root) / "versions" for root in roots), uv_pythons):
        pattern = f"*{version}.*/bin/python3"
        yield from map(str, sorted(folder.glob(pattern), reverse=True))
    for place in ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
        if (Path(place) / f"python{version}").exists():
            yield f"{place}/python{version}"


def runs(python: str, version: str) -> bool:
    """Return whether a file is a working Python of that version, with the modules that installing packages needs."""
    check = f"import sys, ssl, ctypes, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    try:
        done = subprocess.run(
            [python, "-I", "-c", check],
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def require_torch() -> None:
    """Raise InputError where the launcher is installed without torch: agents of cells without a stack cannot start
    there.
    """
    if find_spec("torch") is None:
        raise InputError(
            Problem(
                message="cells without a stack train in the environment of the harness, which has no torch",
                found=sys.prefix,
                hint="install packing-harness[node] there, or name a stack in the matrix",
            )
        )
