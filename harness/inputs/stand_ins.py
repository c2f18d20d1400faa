"""Runs somebody's launch script with stand-ins for the programs that would train: they write down their words, and end.

Everything else in the script runs as it is, so its owner is asked first.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from shlex import join

from harness.core.errors import InputError, Problem
from harness.infra.command import ask

NAMES = (
    *("torchrun", "python", "python3", "srun", "sbatch", "mpirun", "mpiexec", "accelerate", "deepspeed"),
    *("uv", "ray", "apptainer", "singularity", "docker", "enroot", "nvidia-smi", "pip", "megatron", "swift"),
)
_PATIENCE_S = 60.0
_WORDS = "words"  # the file that stand-ins write to: words end with NUL, commands with an empty word
_PROGRAM = """#!/bin/sh
{{ printf '%s\\0' {name} "$@"; printf '\\0'; }} >> {file}
"""


def commands_of(script: Path) -> str:
    """Return the commands that the script would have started, a line each, in order.

    It runs in the current folder. InputError if it fails before it starts one, with the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for program in NAMES:
            stand_in = folder / program
            stand_in.write_text(_PROGRAM.format(name=program, file=join([str(folder / _WORDS)])), encoding="utf-8")
            stand_in.chmod(0o755)
        answer = ask(
            ["bash", str(script)],
            env={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
            patience_s=_PATIENCE_S,
        )
        written = folder / _WORDS
        text = written.read_text(encoding="utf-8", errors="replace") if written.exists() else ""
    commands = [command.split("\0") for command in text.split("\0\0") if command]
    if not commands:
        why = f": {answer.problem}" if answer.problem else ""
        raise InputError(
            Problem(
                message=f"started none of {', '.join(NAMES[:6])}{why}",
                file=str(script),
                key="--from",
                hint="start it as you start your run, in the same folder and with the same variables",
            )
        )
    return "\n".join(join(word for word in command if word) for command in commands)
