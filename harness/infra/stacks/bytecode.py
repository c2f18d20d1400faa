"""Compiles what the agents of a stack import, so that their imports take half the time.

Some machines switch bytecode caching off, and a module is compiled again by every process that imports it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from contextlib import suppress
from importlib.util import source_from_cache
from pathlib import Path

from harness.core.stack import ReadyStack
from harness.infra.stacks import interpreters
from harness.infra.stacks.artifact_store import locked
from harness.infra.stacks.node_code import agent_environment, copy_node_code

TIMEOUT_S = 600.0
_OTHERS = 3  # environments to take bytecode from: listing the files of one takes half a second
_IMPORTS = "import harness.node.agent; from harness.node.load import load; load()"


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
                timeout=TIMEOUT_S,
            )
        stamp.touch()


def share_bytecode(environment: Path) -> None:
    """Link the bytecode of the store's other environments for source files that are the same file.

    uv installs by hard links, so two environments with the same wheel, above all torch, share its files. Bytecode is
    valid for them all: it names its source by size and time, and Python corrects the path when it loads it.
    """
    stamps = environment.parent.glob(f"{environment.name.partition('-')[0]}-*/compiled-*")
    newest = sorted({stamp.parent for stamp in stamps}, key=lambda other: other.stat().st_mtime)[-_OTHERS:]
    for other in newest:
        for compiled in other.glob("lib/python*/site-packages/**/*.pyc"):
            source = Path(source_from_cache(str(compiled)))
            with suppress(OSError):  # not in both environments, or another process removes one
                if source.samefile(environment / source.relative_to(other)):
                    target = environment / compiled.relative_to(other)
                    target.parent.mkdir(exist_ok=True)
                    os.link(compiled, target)
