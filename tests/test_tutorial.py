"""Runs the tutorial: every command in a ```console block must have the exit code and the output that the page shows.

A line that starts with `$ ` is a command, run by bash. The lines below it must appear in its output in this order, with
where `...` matches anything and a run of blanks any other. `$ echo $?` and the number below it state the exit code of
the command above; without it the command must exit with 0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
ASK_CODE = "echo $?"


@dataclass
class Step:
    command: str
    output: list[str] = field(default_factory=list)
    code: int = 0


def steps(page: str) -> list[Step]:
    """The commands of a page, with the output and exit code that it states."""
    found: list[Step] = []
    for block in BLOCK.findall(page):
        asked = False
        for line in block.splitlines():
            if line == f"$ {ASK_CODE}":
                asked = True
            elif line.startswith("$ "):
                asked = False
                found.append(Step(line[2:]))
            elif asked:
                found[-1].code = int(line)
            elif line.strip():
                found[-1].output.append(line)
    return found


def missing(expected: list[str], output: str) -> str | None:
    """The first expected line that the output does not have after the lines before it."""
    text, place = " ".join(output.split()), 0
    for line in expected:
        for piece in line.split("..."):
            wanted = " ".join(piece.split())
            at = text.find(wanted, place)
            if at < 0:
                return line
            place = at + len(wanted)
    return None


def follow(page: str, folder: Path) -> list[str]:
    """Run the page's commands in `folder`; returns a description of each that differs from the page."""
    bin_folder = str(Path(sys.executable).parent)
    env = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "140", "NO_COLOR": "1"}
    wrong = []
    for step in steps(page):
        argv = ["bash", "-c", step.command]
        done = subprocess.run(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        gone = missing(step.output, done.stdout)
        if done.returncode != step.code:
            wrong.append(f"$ {step.command}\nexit code {done.returncode}, the page says {step.code}\n{done.stdout}")
        elif gone is not None:
            wrong.append(f"$ {step.command}\nthe page shows this line, the output does not: {gone}\n{done.stdout}")
    return wrong


@pytest.mark.train
def test_every_command_of_the_tutorial_does_what_the_page_says(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "matrices", tmp_path / "matrices")
    page = (root / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert len(steps(page)) >= 8
    wrong = follow(page, tmp_path)
    if wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)


def page_of(*lines: str) -> str:
    return "\n".join(["```console", *lines, "```"])


def test_a_page_that_tells_the_truth_is_followed(tmp_path: Path) -> None:
    page = page_of("$ echo one   two; echo three", "one two", "...ee", "$ exit 2", "$ echo $?", "2")
    assert steps(page) == [Step("echo one   two; echo three", ["one two", "...ee"]), Step("exit 2", [], 2)]
    assert follow(page, tmp_path) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("$ echo one", "two"), "the output does not: two"),
        (("$ echo one; echo two", "two", "one"), "the output does not: one"),
        (("$ exit 3",), "exit code 3, the page says 0"),
        (("$ true", "$ echo $?", "1"), "exit code 0, the page says 1"),
    ],
)
def test_a_page_that_does_not_is_found_out(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    assert said in follow(page_of(*lines), tmp_path)[0]
