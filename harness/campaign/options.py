"""The options of `harness run`, some of which other commands have too: each declared once, at the field of its value.

The command line, the Python interface and the plug-in of pytest follow from it. Imports nothing of the harness: every
session of pytest loads it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

RUN_PARENT = Path("reports")  # folder of run directories, unless the command or the cluster profile names another
_OPTION = "option"


def _number(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not 1 <= value <= most:
            raise ValueError
        return value

    number.__name__ = f"number from 1 to {most:,}"
    return number


count, days = _number(10**9), _number(10**5)


def layer_number(text: str) -> int:
    """Parse the number of a layer, from 0; ValueError, which argparse reports, for any other text."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def factor(text: str) -> float:
    """Parse a finite factor above 1; ValueError, which argparse reports, for any other text."""
    number = float(text)
    if not 1 < number < math.inf:
        raise ValueError
    return number


def hours(text: str) -> float:
    """Parse a finite number of hours above 0; ValueError, which argparse reports, for any other text."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError
    return number


# argparse prints these, e.g. "invalid factor above 1 value: 'x'".
factor.__name__ = "factor above 1"
layer_number.__name__ = "number from 0"
hours.__name__ = "number of hours"


def receiver(text: str) -> str:
    """Check a value of --notify; argparse prints the error and exits with 2."""
    from harness.reporting.notify import problem_of

    if problem := problem_of(text):
        raise argparse.ArgumentTypeError(problem)  # without the text, which may hold a secret
    return text


@dataclass(frozen=True, kw_only=True)
class Option:
    """How the command line gives a field its value: by a switch, an option that may be repeated, or one value."""

    default: Any
    flag: str
    help: str
    metavar: str = ""
    type: Callable[[str], Any] = str
    in_python: bool = True  # a keyword of `harness.run`
    in_pytest: bool = False  # also --harness-... of pytest

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    @property
    def repeatable(self) -> bool:
        return isinstance(self.default, tuple)

    @property
    def keywords(self) -> dict[str, Any]:
        """For argparse's `add_argument` and pytest's `addoption`."""
        if self.is_switch:
            action = "store_false" if self.default else "store_true"
            return {"help": self.help, "default": self.default, "action": action}
        value = {"help": self.help, "metavar": self.metavar, "type": self.type}
        return value | ({"default": [], "action": "append"} if self.repeatable else {"default": self.default})


def _option(default: Any, flag: str, text: str, metavar: str = "", **more: Any) -> Any:
    option = Option(default=default, flag=flag, help=text, metavar=metavar, **more)
    return field(default=default, metadata={_OPTION: option})


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Which cells run, changed how, and where."""

    only: Sequence[str] = _option(
        (), "--only", "run only cells with this id, name or shell-style pattern (repeatable)", "CELL"
    )
    expression: str = _option(
        "",
        "-k",
        "run only cells whose id contains these texts, with and, or, not: 'tp2 and not sft'",
        "EXPRESSION",
    )
    failed: bool = _option(False, "--failed", "run only the cells that failed in the matrix's newest run")
    settings: Sequence[str] = _option(
        (),
        "--set",
        "use this value instead of the matrix file's: train.steps=5 or 'matrix.tp=[1, 2]' (repeatable)",
        "SETTING",
        in_pytest=True,
    )
    since: str | None = _option(
        None,
        "--since",
        "also run the cells on the checkout that you are in as of this commit, and report only what differs",
        "REF",
    )
    fault: str | None = _option(
        None,
        "--fault",
        "break the cells on purpose by this fault of the self-test, to see what the reports show",
        "FAULT",
    )
    cluster: str | None = _option(
        None,
        "--cluster",
        "cluster profile by name or path, instead of the one that the matrix names",
        "NAME",
        in_pytest=True,
    )
    run_dir: Path | None = _option(
        None,
        "--run-dir",
        f"folder of run directories (default: the profile's run_dir, else {RUN_PARENT})",
        "DIR",
        type=Path,
        in_pytest=True,
    )


@dataclass(frozen=True, kw_only=True)
class VerdictOptions:
    """What happens with the verdict on a run besides its reports."""

    history: Path | None = _option(
        None,
        "--history",
        "the history (SQLite), instead of $HARNESS_HISTORY or history.sqlite beside the run directories",
        "FILE",
        type=Path,
    )
    record: bool = _option(True, "--no-history", "do not record the run in the history", in_pytest=True)
    notify: Sequence[str] = _option(
        (),
        "--notify",
        "send the verdict to a command (JSON on stdin) or a webhook (http, https); repeatable",
        "CMD_OR_URL",
        type=receiver,
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions(VerdictOptions, PlanOptions):
    """All options of `harness run`, except for those of the screen."""

    maxfail: int | None = _option(
        None, "--maxfail", "stop once N cells have failed; `resume` runs the others", "N", type=count
    )
    dry_run: bool = _option(
        False,
        "--dry-run",
        "show what would be started, start nothing; for a cluster, also write the job files",
        in_python=False,
    )
    detach: bool = _option(False, "--detach", "submit the jobs to the cluster and exit", in_python=False)
    for_git: bool = _option(
        False,
        "--bisect",
        "exit codes for git bisect run: 125 to skip a commit that cannot be judged, 128 to abort",
        in_python=False,
    )
    max_gpu_hours: float | None = _option(
        None, "--max-gpu-hours", "refuse a plan whose jobs may cost more GPU-hours than this", "H", type=hours
    )


OPTIONS: dict[str, Option] = {one.name: one.metadata[_OPTION] for one in fields(RunOptions)}


def add_option(parser: argparse.ArgumentParser, name: str, **changed: Any) -> None:
    """Add the option of that field. `changed`: the keywords that differ for this command."""
    parser.add_argument(OPTIONS[name].flag, dest=name, **(OPTIONS[name].keywords | changed))


def add_options(parser: argparse.ArgumentParser, kind: type[PlanOptions | VerdictOptions]) -> None:
    """Add the options that a class declares, without inherited ones, in their order."""
    for name in kind.__annotations__:
        add_option(parser, name)


def run_options(arguments: argparse.Namespace) -> RunOptions:
    """Return the options as parsed; those that the command lacks have their defaults."""
    return RunOptions(**{name: getattr(arguments, name) for name in OPTIONS if hasattr(arguments, name)})


def command_words(options: PlanOptions | VerdictOptions) -> list[str]:
    """Return the words of a command line that gives these options."""
    words: list[str] = []
    for declared in fields(options):
        option, value = OPTIONS[declared.name], getattr(options, declared.name)
        if option.is_switch:
            words += [option.flag] if value is not option.default else []
        elif option.repeatable or value != option.default:
            words += [
                word for element in (value if option.repeatable else [value]) for word in (option.flag, str(element))
            ]
    return words


CLUSTER_JOBS = 3  # points that a bisection on a cluster judges at once: each round leaves a quarter of the history
