"""Asks the trainer of a stack, in the stack's environment, whether it accepts the arguments of cells."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.errors import InfrastructureError
from harness.core.serialization import dumps
from harness.core.stack import ReadyStack
from harness.infra.stacks import interpreters
from harness.infra.stacks.node_code import agent_environment, copy_node_code

TIMEOUT_S = 600.0
_SHOWN = 2_000  # characters of what the process printed


def argument_problems(stack: ReadyStack, trainer: str, cells: Mapping[str, CellConfig]) -> dict[str, str]:
    """What is wrong with the arguments of each cell of a trainer, by id; cells without problems are left out.

    InfrastructureError if the trainer cannot be asked, since nothing else would find a misspelt argument before cells
    start.
    """
    with tempfile.TemporaryDirectory(prefix="harness-arguments-") as folder:
        file = Path(folder) / "cells.json"
        file.write_text(dumps(dict(cells)), encoding="utf-8")
        env = interpreters.clean_environment(agent_environment(stack, copy_node_code(Path(folder))))
        argv = [stack.python, "-W", "ignore", "-m", f"harness.node.trainers.{trainer}.arguments", str(file)]
        try:
            done = subprocess.run(
                argv,
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"{stack.python} cannot be asked about arguments: {error}") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise InfrastructureError(f"{stack.python} cannot be asked about arguments: {done.stderr[-_SHOWN:]}")
    problems: dict[str, str] = json.loads(lines[-1])
    return problems
