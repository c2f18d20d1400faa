"""docs/triage.md: every command it shows is one that the command line takes, with options and files that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.app.cli import build_parser

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[list[str]]:
    return [shlex.split(line) for block in BLOCK.findall(page) for line in block.splitlines() if line.strip()]


def test_every_command_of_the_page_parses(root: Path) -> None:
    found = commands((root / "docs" / "triage.md").read_text(encoding="utf-8"))
    assert {command[1] for command in found} >= {"status", "logs", "report", "bisect", "shrink"}
    for command in found:
        assert command[0] == "harness"
        arguments = build_parser().parse_args(command[1:])
        matrix = getattr(arguments, "matrix", None)
        assert matrix is None or (root / matrix).is_file(), command


def test_a_command_that_does_not_exist_is_found_out(capsys: pytest.CaptureFixture[str]) -> None:
    ((_, *arguments),) = commands("```sh\nharness shrink latest cell --no-such-option\n```\n")
    with pytest.raises(SystemExit):
        build_parser().parse_args(arguments)
    assert "--no-such-option" in capsys.readouterr().err
