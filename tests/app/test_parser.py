"""Misspelt words are errors of their command, with its usage and the nearest word; options may come first."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from harness.app.cli import build_parser


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command and subcommand."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from commands(child, (*words, name))


@pytest.mark.parametrize("words", list(commands(build_parser())), ids=" ".join)
def test_every_command_has_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*words, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: harness", *words]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["logs", "latest", "--rnak", "7"],
            ["usage: harness logs", "unrecognized arguments: --rnak", "mean '--rank'?"],
        ),
        (["stauts", "latest"], ["no such command: 'stauts'; did you mean 'status'?"]),
        (["history", "--outcome", "FIAL"], ["no such choice: 'FIAL'; did you mean 'FAIL'? (choose from PASS,"]),
        (["run", "--dry-run"], ["usage: harness run", "the following arguments are required: MATRIX"]),
        (["status", "a", "b"], ["usage: harness status", "unrecognized arguments: b"]),
    ],
)
def test_an_error_is_of_its_command(words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(words)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert [text for text in said if text not in printed] == []


def test_positionals_may_follow_options() -> None:
    parsed = build_parser().parse_args(["logs", "latest", "--rank", "7", "CELL"])
    assert (parsed.run, parsed.rank, parsed.cell) == ("latest", 7, "CELL")
    parsed = build_parser().parse_args(["compare", "a", "--json", "b"])
    assert (parsed.run, parsed.other, parsed.json) == ("a", "b", True)
    parsed = build_parser().parse_args(["verify", "a", "b"])
    assert [path.name for path in parsed.matrix] == ["a", "b"]
