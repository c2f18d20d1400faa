"""Transformer Engine's PyTorch extension, built without a GPU and cached: some stacks only need to import it.

The package index has only its sources. The compiler's headers come from the index too (nvidia-*), not from a CUDA
toolkit. The extension has no CUDA source: compilation spends its time on torch's headers, parsed for each of 31 files.
Compiled as one file without optimisation it takes 80 s of processor time instead of 20 minutes. The result can be
imported; on a CPU its kernels never run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.core.errors import InfrastructureError, NotBuildableError
from harness.infra.stacks.artifact_store import folder, locked
from harness.infra.stacks.wheel_tags import distribution

NAME = "transformer-engine-torch"
TOOLS = ("setuptools", "wheel", "ninja", "pybind11", "packaging", "numpy", "pip")
LIMIT_S = 3600
MINUTES = 2
Say = Callable[[str], None]
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


def is_wanted(requirement: str) -> bool:
    """Whether a requirement is the extension, which cannot be installed like any other package."""
    return distribution(requirement) == NAME


def wheel(requirement: str, python: Path, install: Install, say: Say) -> Path:
    """The wheel for the environment of `python`, built unless it is cached; torch must be installed there.

    NotBuildableError when it cannot be built, with the errors of the compiler, or the end of what was printed.
    """
    torch = _ask(python, "import torch, sys; print(torch.__version__, '%d.%d' % sys.version_info[:2])").split()
    place = folder() / "wheels" / f"{requirement.replace('==', '-')}-torch{torch[0]}-py{torch[1]}"
    with locked(place):
        if found := _kept(place):
            return found
        if shutil.which("g++") is None:
            raise NotBuildableError(f"{NAME} cannot be built: there is no g++; install it: apt-get install g++")
        say(f"building {requirement} for torch {torch[0]}: about {MINUTES} minutes of processor time, once")
        _build(requirement, python, place, install)
        if found := _kept(place):
            return found
    raise NotBuildableError(f"building {requirement} produced no wheel")


def _kept(place: Path) -> Path | None:
    return next(iter(sorted(place.glob("*.whl"))), None)


def _build(requirement: str, python: Path, place: Path, install: Install) -> None:
    runtime = _ask(python, "import importlib.metadata as m; print(m.version('nvidia-cuda-runtime'))")
    release = ".".join(runtime.split(".")[:2])
    install([*TOOLS, f"nvidia-cuda-crt=={release}.*", f"nvidia-cuda-cccl=={release}.*"])  # torch 2.11 has no cccl
    nvidia = Path(_ask(python, "import sysconfig; print(sysconfig.get_paths()['purelib'])")) / "nvidia"
    for left in place.glob("work.*"):  # left by a process that was killed
        shutil.rmtree(left)
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
    argv += ["--no-cache-dir", "--no-binary", NAME, "-w", str(work / "out"), requirement]
    _run(argv, {**os.environ, **variables})
    for built in (work / "out").glob("*.whl"):
        built.rename(place / built.name)
    shutil.rmtree(work)


def _run(argv: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuildableError(f"{NAME} could not be built: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).strip().splitlines()]
        told = [line for line in lines if re.match(r"\S+:\d+(:\d+)?: (fatal )?error: ", line)][:20] or lines[-20:]
        raise NotBuildableError(f"{NAME} could not be built, exit code {done.returncode}:\n" + "\n".join(told))


def _ask(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"{python} -c {code!r}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()
