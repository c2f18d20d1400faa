"""Finds the `harness ...` commands of pages, examples and matrix comments, and parses them with the real parser."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from harness.cli.cli import build_parser

_SPAN = re.compile(r"(?<!`)`(?:\$ )?(harness [^`\n]+)`(?!`)")
_LINE = re.compile(r"""(?:^|[\s"'/(])harness"?\s+(?P<rest>[a-z][^#]*)""")
_END = re.compile(r"\s{2,}|\s+(?:\|\|?|&&|;|\d?>>?)|\s*;|\s+#|\)$|`")  # where a command ends
_MADE = ("matrices/newest.yaml",)  # made by the preceding command of the page
_TEXT = (".md",)


@dataclass(frozen=True)
class Command:
    where: str
    words: tuple[str, ...]  # without `harness`


def commands_in(file: Path, name: str) -> Iterator[Command]:
    """Commands in code spans and indented or fenced blocks of a page; in any line of a script or a YAML file."""
    fenced = False
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        fenced ^= line.startswith("```")
        where = f"{name}:{number}"
        if file.suffix in _TEXT and not fenced and not line.startswith("    "):
            texts = _SPAN.findall(line)
        else:
            found = _LINE.search(line.removeprefix("$ "))
            texts = [f"harness {found['rest']}"] if found else []
        for text in texts:
            words = _words(text)
            if words:
                yield Command(where, words)


def _words(text: str) -> tuple[str, ...]:
    """The words of a command as a user would type them; none if the text is prose."""
    rest = _END.split(text.removeprefix("harness").strip(), maxsplit=1)[0]
    rest = re.sub(r"\$\{[^}]*\[@\]\}|\$\{\w+:\+[^}]*\}", "", rest)  # arrays and options that may be empty
    rest = rest.replace("[", "").replace("]", "").replace("...", "").replace("<", "").replace(">", "")
    try:
        words = [word for word in shlex.split(rest) if word]
    except ValueError:
        return ()
    return tuple("1" if word in ("N", "H") else word for word in words)


def _parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Command name -> its parser."""
    return {
        name: choice
        for item in parser._actions
        if isinstance(item, argparse._SubParsersAction)
        for name, choice in item.choices.items()
    }


def complaint(command: Command, root: Path) -> str | None:
    """The error of a command; None if there is none. Required arguments may be missing."""
    if command.words[0] not in (*_parsers(build_parser()), "--help", "--version"):
        return f"{command.where}: harness has no command {command.words[0]!r}"
    for word in command.words:
        if re.fullmatch(r"(matrices|docs)/[\w./-]+", word) and word not in _MADE and not (root / word).exists():
            return f"{command.where}: {word} does not exist"
    complaints = [_parse([*command.words, *["x"] * added]) for added in range(3)]  # x: a missing argument
    if None in complaints:
        return None
    return f"{command.where}: harness {shlex.join(command.words)}: {'; '.join(filter(None, complaints))}"


class _ParserError(Exception):
    pass


def _parse(words: list[str]) -> str | None:
    """The parser's message; None if it accepts the words. Options that are required may be missing."""

    def error(self: argparse.ArgumentParser, message: str) -> None:
        raise _ParserError(message)

    parser = build_parser()
    commands = list(_parsers(parser).values())
    for one in [*commands, *(deeper for command in commands for deeper in _parsers(command).values())]:
        for action in one._actions:
            action.required = action.required and not action.option_strings
        for group in one._mutually_exclusive_groups:
            group.required = False
    with patch.object(argparse.ArgumentParser, "error", error):
        try:
            parser.parse_args(words)
        except _ParserError as refused:
            return str(refused)
        except SystemExit:  # --help, --version
            return None
    return None
