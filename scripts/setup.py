"""Make .venv: find a Python, find uv, install the project with the pinned constraints. Safe to call again.

Runs on the standard library of Python 3.8 or newer. The last thing written is a stamp with a key of all inputs,
so an interrupted setup never counts as done and a second call only compares the key.

    scripts/setup             make or refresh .venv
    scripts/setup --browser   the same, and Chromium for the tests that open a report
    scripts/setup --slurm     the same, and Slurm for the tests that run on a cluster
    scripts/setup --compiler  the same, and g++ to compile Transformer Engine for stacks

Environment: HARNESS_PYTHON names the interpreter to use. uv reads its own UV_* variables; where they are
not set, it gets pip's index and certificate.
"""

from __future__ import annotations

import argparse
import fcntl
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "setup-done.json"
TOOLS = ROOT / ".venv-tools"
INPUTS = ("pyproject.toml", "constraints.txt", "scripts/setup.py")
VERSIONS = ((3, 12), (3, 13))  # megatron-core >= 0.17 needs 3.12
# Each imported in a separate process, since the launcher never imports what the ranks import.
USED_MODULES = (
    "harness.cli.commands.run, harness.campaign.plan_run, harness.campaign.launch",
    "harness.campaign.judging, harness.campaign.reports",
    "harness.runtime.supervisor, megatron.core.models.mimo",
)
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
SLURM_PACKAGES = ("slurm-wlm", "slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server", "munge")
SLURM_COMMANDS = ("sbatch", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "mariadb-install-db", "munged")


class SetupError(Exception):
    """Setup cannot continue; the text says what was tried and what to do."""


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def succeeds(argv: list[str], seconds: int = 60) -> bool:
    """Whether a command exists, ends in time and exits with 0."""
    try:
        ended = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def run(argv: list[str], env: dict[str, str] | None = None) -> None:
    """Run a command with its output shown. SetupError when it fails."""
    try:
        ended = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env)
    except OSError as error:
        raise SetupError(f"cannot start {argv[0]}: {error}") from error
    if ended.returncode != 0:
        raise SetupError(f"exit code {ended.returncode} from: {' '.join(argv)}")


# --- Python ---------------------------------------------------------------------------------------------------------


def python_candidates() -> list[str]:
    """Where a Python may be, in order of preference; a name is looked up on PATH."""
    home = Path.home()
    roots = {os.environ.get("PYENV_ROOT", ""), str(home / ".pyenv")} - {""}
    uv_pythons = os.environ.get("UV_PYTHON_INSTALL_DIR") or str(home / ".local/share/uv/python")
    patterns = [f"{root}/versions/3.1[23]*/bin/python3" for root in sorted(roots)]
    patterns += ["/usr/bin/python3.1[23]", "/usr/local/bin/python3*", "/opt/*/bin/python3", "/opt/python/*/bin/python3"]
    patterns += [f"{uv_pythons}/*/bin/python3"]
    names = ["python3.12", "python3.13", "python3"]
    return names + [path for pattern in patterns for path in sorted(glob.glob(pattern))]  # noqa: PTH207 - absolute


def is_good_python(python: str) -> bool:
    """Whether it runs, has a version in VERSIONS, and has the modules that packages need."""
    check = f"import sys, ssl, venv, ctypes, sqlite3; sys.exit(sys.version_info[:2] not in {VERSIONS})"
    return succeeds([python, "-c", check])


def installed_python() -> str | None:
    chosen = os.environ.get("HARNESS_PYTHON")
    if chosen:
        if not is_good_python(chosen):
            raise SetupError(f"HARNESS_PYTHON={chosen} is not a working Python 3.12 or 3.13; unset it or correct it")
        return chosen
    return next((python for python in python_candidates() if is_good_python(python)), None)


def base_python(python: str) -> str:
    """The path of an interpreter outside any environment: uv finds none by name in an activated one."""
    printed = subprocess.run(
        [python, "-c", "import sys; print(sys._base_executable)"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    return printed.stdout.decode().strip() or python


def find_python() -> str:
    """A working interpreter: an installed one, else from apt, else from uv. SetupError when none of these works."""
    found = installed_python()
    if found:
        return found
    for version in ("3.12", "3.13"):
        if apt_install(f"python{version}", f"python{version}-venv") and is_good_python(f"/usr/bin/python{version}"):
            return f"/usr/bin/python{version}"
    say("no Python 3.12 or 3.13 found; trying uv's own build")
    try:
        run([find_uv(sys.executable), "python", "install", "3.12"], uv_environment(sys.executable))
    except SetupError as error:
        say(str(error))
    found = installed_python()
    if found:
        return found
    tried = "\n  ".join(python_candidates())
    raise SetupError(
        f"no working Python 3.12 or 3.13. Tried:\n  {tried}\n  apt-get install python3.12 (as root)\n"
        "  uv python install 3.12\nInstall one and name it: make setup HARNESS_PYTHON=/path/to/python3.12"
    )


def apt_install(*packages: str) -> bool:
    """Install Debian packages as root on a machine with apt; returns whether that worked."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    succeeds(["apt-get", "update", "-qq"], seconds=300)
    if not all(
        succeeds(["apt-cache", "show", package]) for package in packages
    ):  # apt-get install would take an unknown name as a pattern
        say(f"apt has no {' '.join(packages)}")
        return False
    say(f"apt-get install {' '.join(packages)}")
    argv = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        say(f"apt-get failed: {''.join(done.stdout.decode(errors='replace').strip().splitlines()[-1:])}")
    return done.returncode == 0


# --- uv -------------------------------------------------------------------------------------------------------------


def find_uv(python: str) -> str:
    """uv from PATH if it runs, else one installed with pip into .venv-tools."""
    own = TOOLS / "uv" / "bin" / "uv"
    for candidate in ("uv", str(own)):
        if succeeds([candidate, "--version"]):
            return candidate
    say("no uv found; installing it with pip into .venv-tools")
    shutil.rmtree(TOOLS / "uv", ignore_errors=True)
    if not succeeds([python, "-c", "import ensurepip"]):  # Debian has it in a separate package
        apt_install("python3-venv")
        python = "/usr/bin/python3"
    run([python, "-m", "venv", str(TOOLS / "uv")])
    run([str(TOOLS / "uv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "uv"])
    return str(own)


def uv_environment(python: str) -> dict[str, str]:
    """The environment for uv: an empty cache variable breaks it, and it does not read pip's settings."""
    env = dict(os.environ)
    if not env.get("UV_CACHE_DIR"):
        env.pop("UV_CACHE_DIR", None)
    settings = pip_settings(python)
    if settings.get("index-url") and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & set(env):
        env["UV_DEFAULT_INDEX"] = settings["index-url"]
    if settings.get("cert") and "SSL_CERT_FILE" not in env:
        env["SSL_CERT_FILE"] = settings["cert"]
    return env


def pip_settings(python: str) -> dict[str, str]:
    """pip's index-url and cert, from its files and PIP_* variables; empty without pip."""
    command = [python, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    settings = {}
    for line in listed.stdout.decode(errors="replace").splitlines():
        name, _, value = line.partition("=")
        settings[name.split(".")[-1]] = value.strip().strip("'")
    return settings


# --- environment ----------------------------------------------------------------------------------------------------


def stamp_key() -> str:
    """Digest of everything that decides what .venv holds; ROOT because an editable install names it."""
    digest = hashlib.sha256(f"{ROOT} {os.environ.get('HARNESS_PYTHON', '')}".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def is_done() -> bool:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return False
    return stamp.get("key") == stamp_key() and succeeds([str(VENV / "bin" / "python"), "-c", ""])


def make_environment() -> None:
    python = base_python(find_python())
    uv = find_uv(python)
    env = uv_environment(python)
    say(f"making .venv with {python}")
    STAMP.unlink(missing_ok=True)  # first, so that an incomplete environment never has one
    shutil.rmtree(VENV, ignore_errors=True)
    run([uv, "venv", "--quiet", "--python", python, str(VENV)], env)
    pins = ["--constraints", "constraints.txt", "--build-constraints", "constraints.txt"]
    os.chdir(ROOT)
    run([uv, "pip", "install", "--quiet", "--python", str(VENV / "bin/python"), *pins, "-e", ".[node,dev]"], env)
    compile_used_modules()
    STAMP.write_text(json.dumps({"key": stamp_key(), "python": python}) + "\n")
    say("done")


def compile_used_modules() -> None:
    """Import once with bytecode caching: Megatron's import takes 6 s compiled and 14 s otherwise, and some machines
    disable caching. Compiling all of torch would take minutes; this compiles what is used."""
    say("compiling the harness and the modules that runs import")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    run([str(VENV / "bin/python"), "-W", "ignore", "-m", "compileall", "-q", "harness"], env)
    for modules in USED_MODULES:
        run([str(VENV / "bin/python"), "-W", "ignore", "-c", f"import {modules}"], env)


def find_chromium() -> str | None:
    return next((name for name in CHROMIUM_NAMES if succeeds([name, "--version"])), None)


def ensure_chromium() -> None:
    """Install Chromium for the browser tests, if it is missing. Without it they are skipped, and fail under CI."""
    if find_chromium() is None and not (apt_install("chromium") and find_chromium()):
        say("no Chromium (install it: apt-get install chromium); the browser tests will be skipped, or fail under CI")


def missing_slurm_commands() -> list[str]:
    """The missing programs of the test cluster; daemons are in sbin, which few users have on PATH."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin"
    return [name for name in SLURM_COMMANDS if shutil.which(name, path=path) is None]


def ensure_slurm() -> None:
    """Install Slurm for the cluster tests, if it is missing. Without it they are skipped, and fail under CI."""
    if missing_slurm_commands() and not (apt_install(*SLURM_PACKAGES) and not missing_slurm_commands()):
        say(
            f"no {', '.join(missing_slurm_commands())} (install: apt-get install {' '.join(SLURM_PACKAGES)}); "
            "the cluster tests will be skipped, or fail under CI"
        )


def ensure_compiler() -> None:
    """Install g++, if it is missing. Without it cells with Transformer Engine are rejected, and their tests fail."""
    if not succeeds(["g++", "--version"]) and not (apt_install("g++") and succeeds(["g++", "--version"])):
        say("no g++ (install it: apt-get install g++); stacks with Transformer Engine will be rejected")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--browser", action="store_true", help="also install Chromium")
    parser.add_argument("--slurm", action="store_true", help="also install Slurm")
    parser.add_argument("--compiler", action="store_true", help="also install g++")
    arguments = parser.parse_args()
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a concurrent call waits, and then has nothing to do
        try:
            if not is_done():
                make_environment()
            if arguments.browser:
                ensure_chromium()
            if arguments.slurm:
                ensure_slurm()
            if arguments.compiler:
                ensure_compiler()
        except SetupError as error:
            say(str(error))
            return 2
        except KeyboardInterrupt:
            say("interrupted; run it again to start over")
            return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
