"""Builds environments of packages with uv, once per content of the request.

An environment is built under a temporary name next to its place and moved there when it is complete. A process that
needs it meanwhile waits for the lock.

Transformer Engine's PyTorch extension is built without a GPU and cached: some stacks only need to import it. The
package index has only its sources. The compiler's headers come from the index too (nvidia-*), not from a CUDA toolkit.
The extension has no CUDA source: compilation spends its time on torch's headers, parsed for each of 31 files. Compiled
as one file without optimisation it takes 80 s of processor time instead of 20 minutes. The result can be imported; on a
CPU its kernels never run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.core.errors import InfrastructureError, InputError, NotBuildableError, Problem
from harness.core.run.run_dir import write_json
from harness.core.serialization import dumps
from harness.infra.files import checkout
from harness.launch.stacks import interpreters
from harness.launch.stacks.artifact_store import folder, locked
from harness.launch.stacks.interpreters import Interpreter
from harness.matrix.stacks.section import PYTHONS, EnvironmentRequest

FORMAT = 1  # of the environments; a new number rebuilds all of them
STAMP = "made-of.json"
LOG_LINES = 20
Say = Callable[[str], None]
# Distribution -> platform of its wheels. The one extension of nvidia-resiliency-ext 0.7.0 needs glibc 2.32.
_WHEEL_TAGS = {"nvidia-resiliency-ext": "manylinux_2_39"}
EXTENSION = "transformer-engine-torch"
EXTENSION_TOOLS = ("setuptools", "wheel", "ninja", "pybind11", "packaging", "numpy", "pip")
EXTENSION_LIMIT_S = 3600
EXTENSION_MINUTES = 2
Install = Callable[[Sequence[str]], None]  # uv pip install into the environment
COMPILER = """#!/bin/bash
# g++ that compiles all files of the extension as one, in the place of pybind.cpp; the others become empty objects.
here=$(cd "$(dirname "$0")" && pwd)
compiled=
for arg in "$@"; do case "$arg" in */csrc/*.cpp) compiled=$arg ;; esac; done
[ -n "$compiled" ] || exec g++ "$@"
whole=$here/empty.cpp
if [ "${compiled##*/}" = pybind.cpp ]; then
  whole=$here/whole.cpp
  find "${compiled%%/csrc/*}/csrc" -name "*.cpp" | sort | sed 's/.*/#include "&"/' > "$whole"
else
  : > "$whole"
fi
exec g++ "${@/#"$compiled"/"$whole"}" -O0 -g0
"""
INDEX_TIMEOUT_S = 300.0
MAX_RELEASES = 1000


def place_of(request: EnvironmentRequest, python: str) -> Path:
    """Return where the environment of a request is, or would be. `python`: version, e.g. "3.12"."""
    return folder() / "environments" / key_of(request, python)


def key_of(request: EnvironmentRequest, python: str) -> str:
    """Return a readable name, different for every request, Python version and platform."""
    libc = "-".join(platform.libc_ver())
    made_of = (FORMAT, request.packages, request.no_deps, python, platform.system(), platform.machine(), libc)
    digest = hashlib.sha256(dumps(made_of).encode()).hexdigest()
    return f"py{python}-{digest[:16]}"


def is_built(place: Path) -> bool:
    """Return whether an environment is complete: its stamp is written last."""
    return (place / STAMP).exists()


def python_of(place: Path) -> Path:
    """Return the interpreter of an environment."""
    return place / "bin" / "python"


def build(request: EnvironmentRequest, say: Say) -> Interpreter:
    """Return the environment of a request, built unless it exists and runs.

    InfrastructureError with the end of uv's output when it cannot be made, NotBuildableError when this machine cannot
    compile a part of it. Nothing is cached then: the next call tries again.
    """
    python, version = interpreters.find(request.pythons)
    place = place_of(request, version)
    if is_built(place) and (interpreter := _interpreter_of(place)):
        return interpreter
    with locked(place):
        interpreter = _interpreter_of(place) if is_built(place) else None  # another process may just have built it
        if interpreter is None:
            say(f"building an environment with Python {version}: {', '.join((*request.packages, *request.no_deps))}")
            _build(request, python, place, say)
            interpreter = interpreters.ask(str(python_of(place)))
    return interpreter


def _interpreter_of(place: Path) -> Interpreter | None:
    """Return the environment's interpreter; None when the Python that it was built with is gone."""
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
    """Remove what unfinished builds left; the caller holds the lock."""
    for unfinished in place.parent.glob(f".{place.name}.*.tmp"):
        shutil.rmtree(unfinished, ignore_errors=True)


def _make(request: EnvironmentRequest, python: str, target: Path, say: Say) -> None:
    # Relocatable, since it is moved to its place.
    _uv(["venv", "--quiet", "--relocatable", "--python", python, str(target)], target)
    install = ["pip", "install", "--quiet", "--python", str(python_of(target))]

    def add(packages: Sequence[str]) -> None:
        _uv([*install, *packages], target)

    if request.packages:
        add(request.packages)
    ordinary = [requirement for requirement in request.no_deps if not is_extension(requirement)]
    plain = [requirement for requirement in ordinary if not wheel_options(requirement)]
    if plain:
        add(["--no-deps", *plain])
    for requirement in ordinary:
        if more := wheel_options(requirement):
            add(["--no-deps", *more, requirement])
    for requirement in request.no_deps:
        if is_extension(requirement):
            wheel = extension_wheel(requirement, python_of(target), add, say)
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
    """Return uv of this environment, else of PATH, else of the checkout's setup; InputError if there is none."""
    sibling = Path(sys.executable).parent / "uv"
    of_checkout = [str(folder / ".venv-tools" / "uv" / "bin" / "uv") for folder in [checkout()] if folder]
    for candidate in (str(sibling), shutil.which("uv"), *of_checkout):
        if candidate and _runs(candidate):
            return candidate
    raise InputError("uv was not found, and stacks of packages need it; install it: pip install uv")


def _runs(uv: str) -> bool:
    try:
        return subprocess.run([uv, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def uv_environment() -> dict[str, str]:
    """Return the caller's environment, which names the index and the cache; an empty cache variable breaks uv."""
    env = interpreters.clean_environment()
    if not env.get("UV_CACHE_DIR"):
        env.pop("UV_CACHE_DIR", None)
    return env


def distribution(requirement: str) -> str:
    """Return the normalised name in a requirement."""
    return re.split(r"[=<>!~\[ ;]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")


def wheel_options(requirement: str) -> list[str]:
    """Return the options of uv pip install with which it takes the wheel."""
    tag = _WHEEL_TAGS.get(distribution(requirement))
    return [] if tag is None else ["--python-platform", f"{platform.machine()}-{tag}"]


def is_extension(requirement: str) -> bool:
    """Return whether a requirement is the extension, which cannot be installed like any other package."""
    return distribution(requirement) == EXTENSION


def extension_wheel(requirement: str, python: Path, install: Install, say: Say) -> Path:
    """Return the wheel for the environment of `python`, built unless it is cached; torch must be installed there.

    NotBuildableError when it cannot be built, with the errors of the compiler, or the end of what was printed.
    """
    torch = _ask_python(python, "import torch, sys; print(torch.__version__, '%d.%d' % sys.version_info[:2])").split()
    place = folder() / "wheels" / f"{requirement.replace('==', '-')}-torch{torch[0]}-py{torch[1]}"
    with locked(place):
        if wheel := _kept_wheel(place):
            return wheel
        if shutil.which("g++") is None:
            raise NotBuildableError(f"{EXTENSION} cannot be built: there is no g++; install it: apt-get install g++")
        say(f"building {requirement} for torch {torch[0]}: about {EXTENSION_MINUTES} minutes of processor time, once")
        _build_extension(requirement, python, place, install)
        if wheel := _kept_wheel(place):
            return wheel
    raise NotBuildableError(f"building {requirement} produced no wheel")


def _kept_wheel(place: Path) -> Path | None:
    return next(iter(sorted(place.glob("*.whl"))), None)


def _build_extension(requirement: str, python: Path, place: Path, install: Install) -> None:
    runtime = _ask_python(python, "import importlib.metadata as m; print(m.version('nvidia-cuda-runtime'))")
    release = ".".join(runtime.split(".")[:2])
    install(
        [*EXTENSION_TOOLS, f"nvidia-cuda-crt=={release}.*", f"nvidia-cuda-cccl=={release}.*"]
    )  # torch 2.11 has no cccl
    nvidia = Path(_ask_python(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])")) / "nvidia"
    for abandoned in place.glob("work.*"):  # left by a process that was killed
        shutil.rmtree(abandoned)
    work = place / f"work.{os.getpid()}"
    work.mkdir(parents=True)
    compiler = work / "cxx"
    compiler.write_text(COMPILER, encoding="utf-8")
    compiler.chmod(0o755)
    includes = [nvidia / part / "include" for part in ("cu13", "cudnn", "nccl")]
    variables = {
        "CXX": str(compiler),
        "CUDA_HOME": str(nvidia / "cu13"),
        "CPATH": ":".join(map(str, [*includes, nvidia / "cu13" / "include" / "cccl"])),
        "NVTE_FRAMEWORK": "pytorch",
        "NVTE_PYTORCH_FORCE_BUILD": "TRUE",  # otherwise it first looks for a prebuilt wheel
        "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",
    }
    argv = [str(python), "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    # pip's cache may hold a wheel that was built for another torch.
    argv += ["--no-cache-dir", "--no-binary", EXTENSION, "-w", str(work / "out"), requirement]
    _run_pip(argv, {**os.environ, **variables})
    for built in (work / "out").glob("*.whl"):
        built.rename(place / built.name)
    shutil.rmtree(work)


def _run_pip(argv: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            argv,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=EXTENSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuildableError(f"{EXTENSION} could not be built: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).strip().splitlines()]
        shown = [line for line in lines if re.match(r"\S+:\d+(:\d+)?: (fatal )?error: ", line)][:20] or lines[-20:]
        raise NotBuildableError(f"{EXTENSION} could not be built, exit code {done.returncode}:\n" + "\n".join(shown))


def _ask_python(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"{python} -c {code!r}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def releases_between(package: str, old: str, new: str, *, pre: bool = False) -> tuple[str, ...]:
    """Return the releases after `old` up to and including `new`, oldest first.

    Without yanked ones, which uv leaves out.

    Queried one by one, each as the newest below the previous one, so that uv alone decides what is newer. `pre`:
    include pre-releases. InputError when an end is not a release, or `old` is not the older one.
    """
    problems = [
        Problem(key=package, message=f"{release} is not a release that uv finds in its index")
        for release in (old, new)
        if _newest_release(package, f"=={release}", pre=pre) is None
    ]
    if problems:
        raise InputError(problems)
    releases = [new]
    while len(releases) < MAX_RELEASES:
        below = _newest_release(package, f">{old},<{releases[-1]}", pre=pre)
        if below is None:
            return tuple(reversed(releases))
        releases.append(below)
    raise InfrastructureError(f"{package} has more than {MAX_RELEASES} releases between {old} and {new}")


def is_older_release(package: str, old: str, new: str) -> bool:
    """Return whether one release comes before another; both must exist."""
    return _newest_release(package, f">={old},<{new}", pre=True) is not None


def _newest_release(package: str, specifier: str, *, pre: bool) -> str | None:
    """Return the newest release that a specifier allows; None when there is none. InfrastructureError when uv fails."""
    python, _ = interpreters.find(PYTHONS)
    argv = [find_uv(), "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "--python", python]
    argv += ["--prerelease", "allow" if pre else "disallow"]
    done = subprocess.run(
        [*argv, "-"],
        input=f"{package}{specifier}\n",
        env=uv_environment(),
        capture_output=True,
        text=True,
        timeout=INDEX_TIMEOUT_S,
    )
    if done.returncode == 0:
        return done.stdout.strip().splitlines()[-1].partition("==")[2].split()[0]
    if "No solution found" in done.stderr:
        return None
    raise InfrastructureError(f"uv cannot list releases of {package}: {done.stderr.strip()[-500:]}")
