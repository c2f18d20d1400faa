"""Builds environments of packages with uv, once per content of the request.

An environment is built under a temporary name next to its place and moved there when it is complete. A process that
needs it meanwhile waits for the lock.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.core.errors import InfrastructureError, InputError
from harness.core.run.run_dir import write_json
from harness.core.serialization import dumps
from harness.infra.inputs.shipped import checkout
from harness.infra.stacks import interpreters, transformer_engine, wheel_tags
from harness.infra.stacks.artifact_store import folder, locked
from harness.infra.stacks.interpreters import Interpreter
from harness.plan.stacks.environment_request import EnvironmentRequest

FORMAT = 1  # of the environments; a new number rebuilds all of them
STAMP = "made-of.json"
LOG_LINES = 20
Say = Callable[[str], None]


def place_of(request: EnvironmentRequest, python: str) -> Path:
    """Where the environment of a request is, or would be. `python`: version, e.g. "3.12"."""
    return folder() / "environments" / key_of(request, python)


def key_of(request: EnvironmentRequest, python: str) -> str:
    """A readable name, different for every request, Python version and platform."""
    made_of = (FORMAT, request.packages, request.no_deps, python, platform.system(), platform.machine(), _libc())
    digest = hashlib.sha256(dumps(made_of).encode()).hexdigest()
    return f"py{python}-{digest[:16]}"


def _libc() -> str:
    return "-".join(platform.libc_ver())


def is_built(place: Path) -> bool:
    return (place / STAMP).exists()


def python_of(place: Path) -> Path:
    return place / "bin" / "python"


def build(request: EnvironmentRequest, say: Say) -> Interpreter:
    """The environment of a request, built unless it exists and runs.

    InfrastructureError with the end of uv's output when it cannot be made, NotBuildableError when this machine cannot
    compile a part of it. Nothing is cached then: the next call tries again.
    """
    python, version = interpreters.find(request.pythons)
    place = place_of(request, version)
    if is_built(place) and (found := _interpreter_of(place)):
        return found
    with locked(place):
        found = _interpreter_of(place) if is_built(place) else None  # another process may just have built it
        if found is None:
            say(f"building an environment with Python {version}: {', '.join((*request.packages, *request.no_deps))}")
            _build(request, python, place, say)
            found = interpreters.ask(str(python_of(place)))
    return found


def _interpreter_of(place: Path) -> Interpreter | None:
    """The environment's interpreter; None when the Python that it was built with is gone."""
    try:
        return interpreters.ask(str(python_of(place)))
    except InfrastructureError:
        return None


def _build(request: EnvironmentRequest, python: str, place: Path, say: Say) -> None:
    _remove_left(place)  # left by a process that was killed
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        _make(request, python, temporary, say)
        write_json(temporary / STAMP, {"request": request, "python": python})
        if place.exists():  # its interpreter no longer runs; renamed first, since a removal may be interrupted
            place.rename(place.with_name(f".{place.name}.{os.getpid()}.old.tmp"))
        temporary.rename(place)
    finally:
        _remove_left(place)


def _remove_left(place: Path) -> None:
    """Removes what unfinished builds left; the caller holds the lock."""
    for left in place.parent.glob(f".{place.name}.*.tmp"):
        shutil.rmtree(left, ignore_errors=True)


def _make(request: EnvironmentRequest, python: str, target: Path, say: Say) -> None:
    # Relocatable, since it is moved to its place.
    _uv(["venv", "--quiet", "--relocatable", "--python", python, str(target)], target)
    install = ["pip", "install", "--quiet", "--python", str(python_of(target))]

    def add(packages: Sequence[str]) -> None:
        _uv([*install, *packages], target)

    if request.packages:
        add(request.packages)
    ordinary = [item for item in request.no_deps if not transformer_engine.is_wanted(item)]
    plain = [item for item in ordinary if not wheel_tags.options(item)]
    if plain:
        add(["--no-deps", *plain])
    for item in ordinary:
        if more := wheel_tags.options(item):
            add(["--no-deps", *more, item])
    for item in request.no_deps:
        if transformer_engine.is_wanted(item):
            wheel = transformer_engine.wheel(item, python_of(target), add, say)
            add(["--no-deps", str(wheel)])


def _uv(arguments: list[str], target: Path) -> None:
    """Run uv in the environment's parent folder, so that no project file of the caller's folder applies."""
    argv = [find_uv(), *arguments]
    target.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        argv,
        cwd=target.parent,
        env=uv_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        end = "\n".join(done.stdout.strip().splitlines()[-LOG_LINES:])
        raise InfrastructureError(f"uv {' '.join(arguments[:2])} ended with exit code {done.returncode}:\n{end}")


def find_uv() -> str:
    """uv of this environment, else of PATH, else of the checkout's setup; InputError if there is none."""
    sibling = Path(sys.executable).parent / "uv"
    own = [str(folder / ".venv-tools" / "uv" / "bin" / "uv") for folder in [checkout()] if folder]
    for candidate in (str(sibling), shutil.which("uv"), *own):
        if candidate and _runs(candidate):
            return candidate
    raise InputError("uv was not found, and stacks of packages need it; install it: pip install uv")


def _runs(uv: str) -> bool:
    try:
        return subprocess.run([uv, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def uv_environment() -> dict[str, str]:
    """The caller's environment, which names the index and the cache; an empty cache variable breaks uv."""
    env = interpreters.clean_environment()
    if not env.get("UV_CACHE_DIR"):
        env.pop("UV_CACHE_DIR", None)
    return env
