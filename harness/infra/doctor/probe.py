"""Probes the machine and the cluster for `harness doctor`; checks.py judges the facts."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.infra.command import ask
from harness.infra.doctor.checks import COMMANDS, PACKAGES, Facts, InterpreterFacts, RunFolder
from harness.infra.doctor.gpu_probe import probe_gpus
from harness.infra.file_system import MOUNTS, kind_of
from harness.infra.slurm.client import SlurmClient
from harness.plan.jobs.cluster import ClusterProfile

_PROGRAM = """
import importlib.util, json, sys
from importlib.metadata import PackageNotFoundError, version
def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({"python": sys.version_info[:2], "harness": importlib.util.find_spec("harness") is not None,
                  "versions": {name: found(name) for name in sys.argv[1:]}}))
"""


def probe(profile: ClusterProfile, folder: Path) -> Facts:
    """Collects the facts that the checks of this profile need. Creates no folder; its one temporary file is removed."""
    python = None if profile.container else profile.python or sys.executable
    interpreter = None if python is None else probe_interpreter(python, profile.env)
    gpus = ask(["nvidia-smi", "-L"]) if shutil.which("nvidia-smi") else None
    found = Facts(interpreter=interpreter, gpus=gpus, folder=probe_folder(folder))
    if profile.gpus_per_node or (gpus is not None and profile.kind == "local"):
        found = replace(found, on_gpus=probe_gpus(python, environment_with(profile.env), ask))
    if profile.kind == "local":
        return found
    slurm = SlurmClient()
    return replace(
        found,
        commands={name: slurm.version(name) for name in COMMANDS},
        partitions=slurm.partitions(),
        accounts=slurm.accounts(getpass.getuser()),
        accounting=slurm.accounting(),
        srun_help=slurm.srun_help(),
        apptainer=ask(["apptainer", "--version"]),
        missing=tuple(path for path in named_paths(profile) if not Path(path).exists()),
    )


def named_paths(profile: ClusterProfile) -> list[str]:
    """Paths that the profile's container needs: its image, where that is a path, and the sources of mounts."""
    if profile.container is None:
        return []
    sources = [mount.partition(":")[0] for mount in profile.container.mounts]
    return [one for one in (profile.container.image, *sources) if one.startswith("/")]


def environment_with(env: Mapping[str, str | None]) -> dict[str, str]:
    """This machine's environment, overridden by a profile's variables."""
    return {**os.environ, **{name: value for name, value in env.items() if value is not None}}


def probe_interpreter(python: str, env: Mapping[str, str | None]) -> InterpreterFacts:
    """Runs an interpreter as a job would, with the profile's environment; reads package metadata, imports nothing."""
    answer = ask([python, "-c", _PROGRAM, *PACKAGES], environment_with(env))
    if answer.problem:
        return InterpreterFacts(path=python, problem=answer.problem)
    try:
        facts = json.loads(answer.text)
    except ValueError:
        return InterpreterFacts(path=python, problem="unexpected output: not a Python interpreter?")
    return InterpreterFacts(
        path=python, python=tuple(facts["python"]), harness=facts["harness"], versions=dict(facts["versions"])
    )


def probe_folder(path: Path) -> RunFolder:
    """Facts about a folder or its nearest existing parent: whether it is writable, its file system, space and clock."""
    exists = next(one for one in (path, *path.parents) if os.access(one, os.F_OK))
    try:
        with tempfile.NamedTemporaryFile(dir=exists, prefix=".doctor-") as stream:
            before = time.time()
            stream.write(b"x")
            stream.flush()
            skew = os.fstat(stream.fileno()).st_mtime - before
    except OSError as error:
        return RunFolder(path=path, exists=exists, problem=str(error.strerror))
    free = shutil.disk_usage(exists).free
    kind = kind_of(exists, MOUNTS.read_text(encoding="utf-8", errors="replace")) or "unknown"
    return RunFolder(path=path, exists=exists, filesystem=kind, free_bytes=free, skew_s=skew)
