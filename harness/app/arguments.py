"""Arguments that several commands share, and the types of their values. Imports nothing heavy: --help needs it."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

RUN_PARENT = Path("reports")  # folder of run directories, unless the command or the cluster profile names another
CLUSTER_JOBS = 3  # points that a bisection on a cluster judges at once: each round leaves a quarter of the history
RUN = "path, run id, or 'latest'"


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN)


def add_run_parent(
    parser: argparse.ArgumentParser,
    *,
    default: Path | str | None = RUN_PARENT,
    what: str = "folder of run directories",
) -> None:
    """`default`: None if the cluster profile decides; argparse.SUPPRESS if the option may also stand elsewhere."""
    shown = f"the profile's run_dir, else {RUN_PARENT}" if default is None else RUN_PARENT
    parser.add_argument("--run-dir", type=Path, default=default, metavar="DIR", help=f"{what} (default: {shown})")


def add_history(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    place = "the history (SQLite), instead of $HARNESS_HISTORY or history.sqlite beside the run directories"
    parser.add_argument("--history", type=Path, metavar="FILE", default=default, help=place)


def _number(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not 1 <= value <= most:
            raise ValueError
        return value

    number.__name__ = f"number from 1 to {most:,}"
    return number


count, days = _number(10**9), _number(10**5)


def factor(text: str) -> float:
    number = float(text)
    if not 1 < number < math.inf:
        raise ValueError
    return number


def hours(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


# argparse prints these, e.g. "invalid factor above 1 value: 'x'".
factor.__name__ = "factor above 1"
hours.__name__ = "number of hours"
