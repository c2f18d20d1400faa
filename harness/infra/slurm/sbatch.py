"""Runs sbatch through submitit: the default of a profile's `launcher` (decision 14)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Answered:
    """How a command of Slurm ended."""

    code: int  # negative where it is unknown
    output: str
    error: str


RunCommand = Callable[[Sequence[str]], Answered]


def by_submitit(command: Sequence[str]) -> Answered:
    from submitit.core.utils import FailedJobError
    from submitit.helpers import CommandFunction

    try:
        output = str(CommandFunction(list(command), verbose=False)())
    except FailedJobError as error:
        # Without a return code submitit could not read its output.
        return Answered(code=getattr(error.__cause__, "returncode", -1), output="", error=str(error))
    return Answered(code=0, output=output, error="")
