#!/usr/bin/env python3
"""Bring the harness to a GPU machine without a network: as wheels, all except torch.

    scripts/gpu_wheels.py pack [FOLDER]           with a network: download the wheels for the GPU machine's Python
    scripts/gpu_wheels.py ready --into VENV       on the GPU machine: print an interpreter that has everything

`pack` resolves the requirements of the harness and its ranks (pyproject.toml; constraints.txt for Python 3.12 and
3.13), without torch and its parts, and writes wheels, requirements.txt and pack.json into FOLDER (.gpu-wheels).
`ready` takes an interpreter that has torch and prints it if nothing is missing; else it makes VENV on top of it, which
sees its packages, and installs what is missing from FOLDER. Needs only the standard library of Python 3.8 or newer.

Exit codes: 0; 2 bad usage; 3 something is missing, which the last line names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".gpu-wheels"
OUR_PYTHONS = ("3.12", "3.13")  # those of constraints.txt; others get an older Megatron
# Never packed: torch with CUDA is gigabytes, and uv is only for the environments of stacks, which need a network.
LEFT_OUT = ("torch", "triton", "uv")
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "nvidia-ml-py")  # the tests; clocks and power of a GPU
GLIBC = ("2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5")
MODULES = (
    *("torch", "megatron.core", "covertable", "hypothesis", "jinja2", "matplotlib", "numpy", "pydantic", "pytest"),
    *("pytest_timeout", "regex", "rich", "ruamel.yaml", "six", "submitit"),
)
CANDIDATES = (str(ROOT / ".venv" / "bin" / "python"), "python3", "python")
MAX_BYTES = 64 << 20  # above this `pack` warns
_LACKING = """
import importlib.util, json, sys
def installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
print(json.dumps({"version": "%d.%d" % sys.version_info[:2], "executable": sys.executable, "path": sys.path,
                  "lacking": [name for name in sys.argv[1:] if not installed(name)]}))
"""


class WheelsError(Exception):
    """Something is missing; the text says what and how to get it."""


class Interpreter(NamedTuple):
    """What a Python reports about itself, without importing the modules."""

    version: str  # like 3.12
    executable: str
    path: list[str]  # where it looks for modules
    lacking: list[str]  # of MODULES


def say(text: str) -> None:
    print(f"gpu_wheels: {text}", file=sys.stderr, flush=True)


# --- where there is a network ---------------------------------------------------------------------------------------


def pack(folder: Path, python: str, machine: str) -> None:
    """Empty the folder and fill it with wheels. `python`: version of the GPU machine, `machine`: its architecture."""
    from setup import SetupError, find_uv, uv_environment

    try:
        uv = find_uv(sys.executable)
    except SetupError as error:
        raise WheelsError(str(error)) from error
    env = uv_environment(sys.executable)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        lock = Path(work) / "lock.txt"
        _run([uv, *_resolve(Path(work), lock, python, machine)], env)
        # pip is packed too: it runs from its wheel on machines without pip.
        lock.write_text(lock.read_text() + "pip\n")
        _run([uv, "tool", "run", "--quiet", "pip", "download", *_download(folder, lock, python, machine)], env)
    (folder / "requirements.txt").write_text("\n".join(_wanted()) + "\n")
    (folder / "pack.json").write_text(json.dumps({"python": python, "machine": machine}) + "\n")
    size = sum(file.stat().st_size for file in folder.iterdir())
    say(f"{len(list(folder.glob('*.whl')))} wheels for Python {python} on {machine}, {size / 2**20:.0f} MiB: {folder}")
    if size > MAX_BYTES:
        say(f"more than {MAX_BYTES >> 20} MiB, which may be too much to upload to that machine")


def _wanted() -> list[str]:
    """Requirements of the harness, its ranks and its tests, without LEFT_OUT."""
    import tomllib  # from Python 3.11 on; only `pack` needs it

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [*project["dependencies"], *project["optional-dependencies"]["node"], *TOOLS]
    return [name for name in names if name.split(">")[0] not in LEFT_OUT]


def _resolve(work: Path, lock: Path, python: str, machine: str) -> list[str]:
    """Arguments of uv that write exact versions of all requirements into `lock`.

    LEFT_OUT is overridden with a marker that never holds.
    """
    (work / "wanted.txt").write_text("\n".join(_wanted()) + "\n")
    (work / "left-out.txt").write_text("".join(f"{name}; sys_platform == 'never'\n" for name in LEFT_OUT))
    pins = ["--constraints", str(ROOT / "constraints.txt")] if python in OUR_PYTHONS else []
    target = ["--python-version", python, "--python-platform", f"{machine}-manylinux_2_28", "--only-binary", ":all:"]
    written = ["--override", str(work / "left-out.txt"), "--no-header", "--no-annotate", "-o", str(lock)]
    return ["pip", "compile", "--quiet", str(work / "wanted.txt"), *pins, *target, *written]


def _download(folder: Path, lock: Path, python: str, machine: str) -> list[str]:
    platforms = [f"manylinux_{version}_{machine}" for version in GLIBC] + [f"manylinux2014_{machine}"]
    flags = [word for platform in platforms for word in ("--platform", platform)]
    target = ["--python-version", python, "--implementation", "cp", "--only-binary=:all:", *flags]
    return ["--quiet", "--disable-pip-version-check", "--no-deps", *target, "-d", str(folder), "-r", str(lock)]


# --- where there is none --------------------------------------------------------------------------------------------


def ready(folder: Path, into: Path, asked: str | None, extra: Path | None) -> str:
    """Path of an interpreter that has everything; an environment made earlier over the same Python is reused."""
    base = _base(asked)
    made = _ask(str(into / "bin" / "python"))
    if made is not None and not made.lacking and extra is None and set(_packages(base)) <= set(made.path):
        return made.executable
    lacking = [name for name in base.lacking if name != "torch"]
    if not lacking and extra is None:
        return base.executable
    if lacking:
        say(f"{base.executable} lacks {', '.join(lacking)}")
    pip = next(iter(sorted(folder.glob("pip-*.whl"))), None)
    if lacking and pip is None:
        raise WheelsError(
            f"no wheels in {folder}; on a machine with a network: scripts/gpu_wheels.py pack --python {base.version}"
        )
    python = _overlay(base, into)
    install = [str(python), f"{pip}/pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    install += ["--no-compile", "--no-warn-script-location"]
    if lacking:
        _check_version(folder, base.version)
        _run([*install, "--find-links", str(folder), "-r", str(folder / "requirements.txt")])
    if extra is not None:
        if pip is None:
            raise WheelsError(f"the wheels in {extra} cannot be installed: no wheel of pip in {folder}")
        _run([*install, "--no-deps", *map(str, sorted(extra.glob("*.whl")))])
    left = _ask(str(python))
    if left is None or left.lacking:
        raise WheelsError(f"{python} still lacks {', '.join(left.lacking) if left else 'everything'}")
    return str(python)


def _base(asked: str | None) -> Interpreter:
    """The interpreter `asked`, else the first candidate; WheelsError without torch."""
    seen = []
    for name in [asked] if asked else CANDIDATES:
        found = _ask(name)
        if found is None:
            seen.append(f"{name}: does not run")
        elif "torch" in found.lacking:
            seen.append(f"{name}: Python {found.version} without torch")
        else:
            return found
    raise WheelsError(f"no Python with torch ({'; '.join(seen)}); set HARNESS_PYTHON=/path/to/python")


def _ask(python: str) -> Interpreter | None:
    """Run an interpreter and return its facts; None when it does not run."""
    try:
        done = subprocess.run([python, "-c", _LACKING, *MODULES], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        return None
    return Interpreter(**json.loads(done.stdout)) if done.returncode == 0 else None


def _overlay(base: Interpreter, into: Path) -> Path:
    """Make an environment on top of an interpreter; returns its Python.

    If the interpreter is itself in an environment, --system-site-packages shows the packages of the Python below it
    only, so a .pth file adds the interpreter's own package folders, after those of the new environment. Transformer
    Engine looks for the libraries of `nvidia` in the environment's own folder alone, so they are linked there.
    """
    say(f"making {into} over {base.executable}")
    _run([base.executable, "-m", "venv", "--without-pip", "--system-site-packages", "--clear", str(into)])
    (site,) = (into / "lib").glob("python*/site-packages")
    (site / "machine.pth").write_text("".join(f"{folder}\n" for folder in _packages(base)))
    libraries = next((path for folder in _packages(base) if (path := Path(folder) / "nvidia").is_dir()), None)
    if libraries is not None:
        (site / "nvidia").symlink_to(libraries)
    return into / "bin" / "python"


def _packages(base: Interpreter) -> list[str]:
    """The folders of an interpreter's packages."""
    return [path for path in base.path if path.endswith(("site-packages", "dist-packages"))]


def _check_version(folder: Path, version: str) -> None:
    packed = json.loads((folder / "pack.json").read_text())
    if packed["python"] != version:
        raise WheelsError(
            f"the wheels in {folder} are for Python {packed['python']}, and this machine's Python with torch is "
            f"{version}; pack again: scripts/gpu_wheels.py pack --python {version}"
        )


def _run(argv: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env or dict(os.environ))
    if done.returncode:
        raise WheelsError(f"exit code {done.returncode} from: {' '.join(argv[:6])} ...")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="download the wheels")
    packing.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    packing.add_argument("--python", default="3.12", help="version of the machine's Python (3.12)")
    packing.add_argument("--machine", default="x86_64", choices=("x86_64", "aarch64"))
    readying = commands.add_parser("ready", help="print an interpreter that has everything")
    readying.add_argument("--wheels", type=Path, default=FOLDER, help="folder that `pack` filled (.gpu-wheels)")
    readying.add_argument("--into", type=Path, required=True, help="environment to make, if one is needed")
    readying.add_argument("--extra", type=Path, help="folder of more wheels, e.g. of Transformer Engine")
    given = parser.parse_args()
    try:
        if given.command == "pack":
            pack(given.folder, given.python, given.machine)
        else:
            print(ready(given.wheels.resolve(), given.into, os.environ.get("HARNESS_PYTHON"), given.extra))
    except WheelsError as error:
        say(str(error))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
