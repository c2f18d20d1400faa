"""Runs a short command of another program and waits for its output, with a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The output of a command. `problem`: why it failed (not on PATH, too slow, its own error), else None."""

    text: str = ""
    problem: str | None = None
    stderr: str = ""


def ask(argv: Sequence[str], env: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S) -> Answer:
    """Run a command without input. `patience_s`: seconds until it is killed."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            env=env,
        )
    except FileNotFoundError:
        return Answer(problem="not on PATH" if "/" not in argv[0] else "no such file")
    except subprocess.TimeoutExpired:
        return Answer(problem=f"no answer within {patience_s:g} s")
    except OSError as error:
        return Answer(problem=str(error.strerror))
    problem = None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        problem = f"exit code {done.returncode}" + (f": {said[-1]}" if said else "")
    return Answer(text=done.stdout, problem=problem, stderr=done.stderr)
