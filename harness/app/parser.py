"""The parser of the command line: argparse, with positionals anywhere and suggestions for misspelt words.

Imports nothing heavy: --help needs it.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from harness.app.completers import VARIABLE
from harness.infra import screen

HELP = frozenset({"-h", "--help"})


def suggestion(word: str, known: Iterable[str]) -> str:
    """E.g. "; did you mean 'status'?", or empty."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class Parser(argparse.ArgumentParser):
    """Prints through `screen`: argparse repeats words of the command line, which may hold secrets.

    Unknown words are errors of the command that got them, with its usage.
    """

    _parsing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse calls it for the whole line, then once per command with the rest."""
        if self._subparsers is not None or VARIABLE in os.environ:
            return super().parse_known_args(args, namespace)
        if HELP & {*(args or ())}:  # parse_known_intermixed_args hides the defaults of positionals, which help shows
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
