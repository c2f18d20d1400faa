"""Runs the harness's node side in the environment of a stack: what agents are started with, and what precedes them.

Agents get a copy of the node side and environment variables. Before them, what they import is compiled, so that their
imports take half the time: some machines switch bytecode caching off, and a module is compiled again by every process
that imports it. And the stack's trainers are asked whether they accept the arguments of cells.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec, source_from_cache
from pathlib import Path
from typing import Any, NamedTuple

import harness
from harness.core.cell.config import CellConfig
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.plugins import Plugin
from harness.core.run.run_dir import RunDir, refuse_links_below, text_of, write_json
from harness.core.serialization import dumps, from_jsonable, loads
from harness.core.stack import ReadyStack, content_of
from harness.launch.stacks import artifact_store, interpreters
from harness.launch.stacks.artifact_store import locked
from harness.upstreams.table import UPSTREAM_TRAINERS

_NODE_SIDE = ("contracts", "core", "faults", "features", "oracle", "probe", "runtime", "upstreams", "__init__.py")
IMPORT_TIMEOUT_S = 600.0
_OTHER_ENVIRONMENTS = 3  # environments to take bytecode from: listing the files of one takes half a second
_IMPORTS = "import harness.runtime.agent; from harness.runtime.load import load; load()"
ARGUMENTS_TIMEOUT_S = 600.0
_SHOWN_CHARACTERS = 2_000  # characters of what the process printed


def agent_environment(stack: ReadyStack, node_code: Path) -> dict[str, str]:
    """Return the variables of an agent in a stack, in addition to the caller's environment: the stack's, and
    PYTHONPATH.

    The checkouts come first, then the stack's own PYTHONPATH, then the harness.
    """
    stack_path = stack.requested.env.get("PYTHONPATH", "")
    path = os.pathsep.join([*stack.paths, *([stack_path] if stack_path else []), str(node_code)])
    return {**stack.requested.env, "PYTHONPATH": path, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}


def plugin_packages(run: RunDir) -> tuple[str, ...]:
    """Return the packages of plug-ins that the ranks of a run load."""
    if not run.plugins.exists():
        return ()
    plugins = from_jsonable(tuple[Plugin, ...], loads(text_of(run.plugins)))
    return tuple(dict.fromkeys(name for plugin in plugins for name in plugin.packages))


def copy_node_code(target: Path, packages: Iterable[str] = ()) -> Path:
    """Copy the part of the harness that ranks need, and nothing else, to a folder for another stack's search path.

    `packages`: top-level packages, or modules, of plug-ins, which are copied beside it.

    The site-packages folder of an installed harness also holds the launcher's packages, which no stack may see.
    """
    refuse_links_below(target)
    source = Path(harness.__file__).resolve().parent
    for name in _NODE_SIDE:
        place = target / "harness" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(source / name, place)
    for name in packages:
        _copy_package(name, target)
    return target


def _copy_package(name: str, target: Path) -> None:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise InputError(Problem(message=f"no package {name}, which a plug-in needs", hint="`harness list plugins`"))
    file = Path(spec.origin)
    if spec.submodule_search_locations is None:
        shutil.copy2(file, target / file.name)
    else:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(file.parent, target / name, ignore=ignored, dirs_exist_ok=True)


def compile_imports(stack: ReadyStack, environment: Path, once: bool) -> None:
    """Import what runs import, with bytecode caching on.

    Done once for every combination of environment and checkouts, with `once` only once per environment. A failure is
    not reported here: the agent's import fails too, and its reason is in the cells' results.
    """
    digest = hashlib.sha256(os.pathsep.join(stack.paths).encode()).hexdigest()[:16]
    stamp = environment / f"compiled-{digest}"
    with locked(environment):
        if stamp.exists() or (once and any(environment.glob("compiled-*"))):
            return
        if not any(environment.glob("compiled-*")):
            share_bytecode(environment)
        with tempfile.TemporaryDirectory(prefix="harness-compile-") as folder:
            env = interpreters.clean_environment(agent_environment(stack, copy_node_code(Path(folder))))
            env.pop("PYTHONDONTWRITEBYTECODE", None)
            subprocess.run(
                [stack.python, "-W", "ignore", "-c", _IMPORTS],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=IMPORT_TIMEOUT_S,
            )
        stamp.touch()


def share_bytecode(environment: Path) -> None:
    """Link the bytecode of the store's other environments for source files that are the same file.

    uv installs by hard links, so two environments with the same wheel, above all torch, share its files. Bytecode is
    valid for them all: it names its source by size and time, and Python corrects the path when it loads it.
    """
    stamps = environment.parent.glob(f"{environment.name.partition('-')[0]}-*/compiled-*")
    newest = sorted({stamp.parent for stamp in stamps}, key=lambda sibling: sibling.stat().st_mtime)[
        -_OTHER_ENVIRONMENTS:
    ]
    for sibling in newest:
        for compiled in sibling.glob("lib/python*/site-packages/**/*.pyc"):
            source = Path(source_from_cache(str(compiled)))
            with suppress(OSError):  # not in both environments, or another process removes one
                if source.samefile(environment / source.relative_to(sibling)):
                    target = environment / compiled.relative_to(sibling)
                    target.parent.mkdir(exist_ok=True)
                    os.link(compiled, target)


def argument_problems(stack: ReadyStack, trainer: str, cells: Mapping[str, CellConfig]) -> dict[str, str]:
    """Return what is wrong with the arguments of each cell of a trainer, by id; cells without problems are left out.

    The answer is kept beside the environments of stacks, for the same cells on the same code. InfrastructureError if
    the trainer cannot be asked, since nothing else would find a misspelt argument before cells start.
    """
    with tempfile.TemporaryDirectory(prefix="harness-arguments-") as folder:
        file = Path(folder) / "cells.json"
        file.write_text(dumps(dict(cells)), encoding="utf-8")
        node_code = copy_node_code(Path(folder))
        answer = _kept_answer(stack, trainer, file.read_bytes(), node_code)
        if answer is not None and answer.exists():
            kept: dict[str, str] = json.loads(text_of(answer))
            return kept
        module = f"{UPSTREAM_TRAINERS[trainer].project}.node_arguments"
        problems: dict[str, str] = _asked(stack, module, str(file), node_code, about="arguments")
        if answer is not None:
            _keep(answer, problems)
        return problems


class BuiltRecipe(NamedTuple):
    """A recipe as its project builds it."""

    yaml: str  # the configuration, as a run dumps it
    ranks: int | None  # that it is made for, where its name says so


def built_recipe(stack: ReadyStack, name: str) -> BuiltRecipe:
    """Return a recipe of Megatron-Bridge by its name, built in the stack; kept beside the environments of stacks.

    ValueError, with what to do, if there is none or it cannot be built. InfrastructureError if the stack fails.
    """
    with tempfile.TemporaryDirectory(prefix="harness-recipe-") as folder:
        node_code = copy_node_code(Path(folder))
        file = _kept_answer(stack, "recipe", name.encode(), node_code)
        if file is not None and file.exists():
            return BuiltRecipe(**json.loads(text_of(file)))
        answer = _asked(stack, "megatron_bridge.node_recipe", name, node_code, about="a recipe")
    if "problem" in answer:
        raise ValueError(answer["problem"])  # not kept: it may be a file that somebody downloads next
    if file is not None:
        _keep(file, answer)
    return BuiltRecipe(**answer)


def _keep(file: Path, answer: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, answer)


def _kept_answer(stack: ReadyStack, asked: str, content: bytes, node_code: Path) -> Path | None:
    """Return the file that keeps the answer; None where code may change without a change of what is known of it.

    `asked`: the trainer, or what else answers; `content`: what it is asked about.
    """
    if stack.requested.interpreter or not stack.packages:
        return None
    known = dumps([asked, content_of(stack.requested), stack.python, stack.packages, stack.commits, stack.reverted])
    digest = hashlib.sha256(known.encode() + content)
    for source in sorted((node_code / "harness").rglob("*.py")):
        digest.update(source.read_bytes())
    return artifact_store.folder() / "answers" / f"{digest.hexdigest()[:32]}.json"


def _asked(stack: ReadyStack, module: str, word: str, node_code: Path, *, about: str) -> Any:
    """Return the answer of a program of harness.upstreams, started with one argument in the environment of a stack."""
    env = interpreters.clean_environment(agent_environment(stack, node_code))
    argv = [stack.python, "-W", "ignore", "-m", f"harness.upstreams.{module}", word]
    try:
        done = subprocess.run(
            argv,
            cwd=node_code,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ARGUMENTS_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"{stack.python} cannot be asked about {about}: {error}") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        why = done.stderr[-_SHOWN_CHARACTERS:]
        raise InfrastructureError(f"{stack.python} cannot be asked about {about}: {why}")
    return json.loads(lines[-1])
