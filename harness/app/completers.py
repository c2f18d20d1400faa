"""What a shell completes: runs, matrices, cells and clusters, besides the words that argparse knows.

A shell that has run the script of `harness completion` calls the command line with VARIABLE set.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.core.outcomes import EXIT_PASS
from harness.infra import screen

VARIABLE = "_ARGCOMPLETE"


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the words that may follow, and end the process."""
    import argcomplete

    _add_completers(parser)
    argcomplete.autocomplete(parser, always_complete_options=False)


def script(shell: str) -> str:
    """The text that a shell reads; `shell`: bash, zsh or fish."""
    from argcomplete.shell_integration import shellcode

    return shellcode(["harness"], shell=shell)


def _add_completers(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in dict.fromkeys(action.choices.values()):
                _add_completers(command)
        elif (name := str(action.metavar)) in _COMPLETERS:
            action.completer = _COMPLETERS[name]  # type: ignore[attr-defined]


def _runs(parsed_args: Any, **_: Any) -> list[str]:
    from harness.app.arguments import RUN_PARENT

    parent = getattr(parsed_args, "run_dir", None) or RUN_PARENT
    return ["latest", *(path.parent.name for path in Path(parent).glob("*/plan.json"))]


def _matrices(prefix: str, **_: Any) -> list[str]:
    from harness.infra.inputs.files import shipped

    here = [str(path) for path in Path().glob(f"{prefix}*") if path.is_dir() or path.suffix in (".yaml", ".yml")]
    return [*here, *(path.stem for path in shipped("matrices").glob("*.yaml"))]


def _cells(parsed_args: Any, **_: Any) -> list[str]:
    """Cells of the run on the line, else of the newest; of a matrix on the line its planned cells."""
    from harness.app.pipeline.planning import expand_for
    from harness.app.selection import find_run
    from harness.infra.inputs.cluster_file import cluster_of
    from harness.infra.inputs.matrix_file import read_matrix
    from harness.infra.runs.evidence_files import read_plan

    if (matrix := getattr(parsed_args, "matrix", None)) is not None:
        read = read_matrix(matrix)
        return [cell.id for cell in expand_for(read, cluster_of(read)[0]).cells]
    run = find_run(str(getattr(parsed_args, "run", None) or "latest"), parsed_args.run_dir)
    return [cell.id for cell in read_plan(run).expansion.cells]


def _clusters(**_: Any) -> list[str]:
    from harness.infra.inputs.cluster_file import folders

    return ["local", *(path.stem for folder in folders(Path()) for path in folder.glob("*.yaml"))]


def _words(**_: Any) -> list[str]:
    from harness.infra.inputs.reference import reference

    return list(dict.fromkeys(entry.name for entry in reference() if " " not in entry.name))


def _faults(**_: Any) -> list[str]:
    from harness.plan.faults.catalogue import FAULTS

    return [spec.name for spec in FAULTS]


# Metavariable of an argument -> its completer, as argcomplete calls it.
_COMPLETERS: dict[str, Callable[..., list[str]]] = {
    "RUN": _runs,
    "RUN_A": _runs,
    "RUN_B": _runs,
    "MATRIX": _matrices,
    "CELL": _cells,
    "FAULT": _faults,
    "NAME": _clusters,
    "WORD": _words,
}


def completion(shell: str) -> int:
    """Print the script, e.g. for `source <(harness completion bash)`."""
    screen.data(script(shell))
    return EXIT_PASS
