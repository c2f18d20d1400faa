"""The parser of the command line, arguments that several commands share, and what a shell completes.

The parser is argparse, with positionals anywhere and suggestions for misspelt words. A shell that has run the script of
`harness completion` calls the command line with COMPLETION_VARIABLE set; besides the words that argparse knows it gets
runs, matrices, cells and clusters. Imports nothing heavy: --help needs it.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.campaign.options import RUN_PARENT, PlanOptions, RunOptions, VerdictOptions, add_option, add_options, count
from harness.infra import screen
from harness.infra.files import matrix_path

HELP_FLAGS = frozenset({"-h", "--help"})
RUN_TEXT = "path, run id, or 'latest'"
MATRIX_TEXT = "matrix file (YAML), or a shipped one by name"
COMPLETION_VARIABLE = "_ARGCOMPLETE"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return e.g. "; did you mean 'status'?", or empty."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class Parser(argparse.ArgumentParser):
    """Prints through `screen`: argparse repeats words of the command line, which may hold secrets.

    Unknown words are errors of the command that got them, with its usage.
    """

    _parsing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse calls it for the whole line, then once per command with the rest."""
        if self._subparsers is not None or COMPLETION_VARIABLE in os.environ:
            return super().parse_known_args(args, namespace)
        if HELP_FLAGS & {
            *(args or ())
        }:  # parse_known_intermixed_args hides the defaults of positionals, which help shows
            return super().parse_known_args(args, namespace)
        if self._parsing:  # called by parse_known_intermixed_args
            return super().parse_known_args(args, namespace)
        self._parsing = True
        try:
            parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._parsing = False
        if unknown:
            self._refuse(unknown)
        return parsed, unknown

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        options = [name for action in self._actions for name in action.option_strings]
        said = [f"{word}{suggestion(word, options) if word.startswith('-') else ''}" for word in unknown]
        self.error(f"unrecognized arguments: {' '.join(said)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = "command" if isinstance(action, argparse._SubParsersAction) else "choice"
            text = f"no such {what}: {str(value)!r}{suggestion(str(value), known)} (choose from {', '.join(known)})"
            raise argparse.ArgumentError(action, text)

    def _print_message(self, message: str, file: Any = None) -> None:
        screen.out(message, file or sys.stderr, end="")


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_TEXT)


def add_run_parent(
    parser: argparse.ArgumentParser, *, default: Path | str = RUN_PARENT, what: str = "folder of run directories"
) -> None:
    """`default`: argparse.SUPPRESS if the option may also stand elsewhere."""
    add_option(parser, "run_dir", default=default, help=f"{what} (default: {RUN_PARENT})")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def add_view(parser: argparse.ArgumentParser) -> None:
    """Options of commands that judge: how much they show."""
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("-q", "--quiet", action="store_true", help="show only what did not pass, and the verdict")
    amount.add_argument(
        "-v", "--verbose", action="store_true", help="show every cell as it starts and ends, and every finding"
    )
    text = "colours: if the terminal has them and NO_COLOR is not set, or as given (default: %(default)s)"
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help=text)
    parser.add_argument("--durations", type=count, default=0, metavar="N", help="list the N slowest cells")


def set_view(arguments: argparse.Namespace) -> None:
    """Apply the options of `add_view`; the defaults where a command has none."""
    screen.VIEW.quiet = getattr(arguments, "quiet", False)
    screen.VIEW.verbose = getattr(arguments, "verbose", False)
    screen.VIEW.color = getattr(arguments, "color", "auto")
    screen.VIEW.durations = getattr(arguments, "durations", 0)


def add_matrix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("matrix", type=matrix_path, metavar="MATRIX", help=MATRIX_TEXT)


def add_from(parser: argparse.ArgumentParser, help_: str) -> None:
    parser.add_argument("--from", dest="source", metavar="FILE", help=help_)
    text = "with --from: run the script, with stand-ins for torchrun, python, srun and others that train nothing"
    parser.add_argument("--execute", action="store_true", help=text)


def add_run_options(run: argparse.ArgumentParser) -> None:
    """The options of `harness run`, first those that choose and change cells."""
    run.add_argument("matrix", type=matrix_path, nargs="?", metavar="MATRIX", help=MATRIX_TEXT)
    add_from(run, "run a training run's matrix, which is written first, as by `harness init --from`")
    add_options(run, PlanOptions)
    add_options(run, VerdictOptions)
    add_view(run)
    add_options(run, RunOptions)


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the words that may follow, and end the process."""
    import argcomplete

    _set_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def completion_script(shell: str) -> str:
    """Return the text that a shell reads, e.g. by `source <(harness completion bash)`; `shell`: bash, zsh or fish."""
    from argcomplete.shell_integration import shellcode

    return shellcode(["harness"], shell=shell)


def _set_completers(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                _set_completers(command)
        elif (name := str(action.metavar)) in _COMPLETERS:
            action.completer = _COMPLETERS[name]  # type: ignore[attr-defined]


def _known_runs(parsed_args: Any, **_: Any) -> list[str]:
    parent = getattr(parsed_args, "run_dir", None) or RUN_PARENT
    return ["latest", *(path.parent.name for path in Path(parent).glob("*/plan.json"))]


def _known_matrices(prefix: str, **_: Any) -> list[str]:
    from harness.infra.files import shipped

    here = [str(path) for path in Path().glob(f"{prefix}*") if path.is_dir() or path.suffix in (".yaml", ".yml")]
    return [*here, *(path.stem for path in shipped("matrices").glob("*.yaml"))]


def _known_cells(parsed_args: Any, **_: Any) -> list[str]:
    """Return cells of the run on the line, else of the newest; of a matrix on the line its planned cells."""
    from harness.campaign.planning import expand_for
    from harness.campaign.selection import find_run
    from harness.inputs.cluster_file import cluster_of
    from harness.inputs.matrix_file import read_matrix
    from harness.runs.evidence_files import read_plan

    if (matrix := getattr(parsed_args, "matrix", None)) is not None:
        read = read_matrix(matrix)
        return [cell.id for cell in expand_for(read, cluster_of(read)[0]).cells]
    run = find_run(str(getattr(parsed_args, "run", None) or "latest"), parsed_args.run_dir)
    return [cell.id for cell in read_plan(run).expansion.cells]


def _known_clusters(**_: Any) -> list[str]:
    from harness.inputs.cluster_file import folders

    return ["local", *(path.stem for folder in folders(Path()) for path in folder.glob("*.yaml"))]


def _known_words(**_: Any) -> list[str]:
    from harness.inputs.reference import reference

    return list(dict.fromkeys(entry.name for entry in reference() if " " not in entry.name))


def _known_faults(**_: Any) -> list[str]:
    from harness.faults.catalogue import FAULTS

    return [spec.name for spec in FAULTS]


# Metavariable of an argument -> its completer, as argcomplete calls it.
_COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "RUN": _known_runs,
    "RUN_A": _known_runs,
    "RUN_B": _known_runs,
    "MATRIX": _known_matrices,
    "CELL": _known_cells,
    "FAULT": _known_faults,
    "NAME": _known_clusters,
    "WORD": _known_words,
}
