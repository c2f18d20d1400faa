"""Completion in the real shells. zsh and fish are optional on a machine; bash is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.arguments import completion_script
from tests.processes import HUNG_S

BASH = """
source "$1"
complete_line() {
  COMP_LINE="$1"; COMP_POINT=${#1}; COMP_WORDS=($1); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_TYPE=9; COMPREPLY=()
  _python_argcomplete harness
  printf '%s\n' "${COMPREPLY[@]}"
}
complete_line "$2"
"""


def shell(name: str, *command: str, cwd: Path) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; its completion is not tested here")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [found, *command], cwd=cwd, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=HUNG_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for run in ("small-20261125T070636Z-4ac3", "other-20261125T070636Z-0000"):
        (tmp_path / "reports" / run).mkdir(parents=True)
        (tmp_path / "reports" / run / "plan.json").write_text("{}")
    for name in ("bash", "zsh", "fish"):
        (tmp_path / name).write_text(completion_script(name))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("harness stat", ["status"]),
        ("harness run tutorial --colo", ["--color"]),
        ("harness status sma", ["small-20261125T070636Z-4ac3"]),
        ("harness run tutor", ["tutorial"]),
        ("harness run tutorial --only tp2-pp2-cp1-s", ["tp2-pp2-cp1-sft-93cfa807"]),
    ],
)
def test_bash_completes_commands_options_runs_matrices_and_cells(place: Path, line: str, words: list[str]) -> None:
    assert shell("bash", "-c", BASH, "bash", "./bash", line, cwd=place).split() == words


def test_fish_completes_a_run(place: Path) -> None:
    said = shell("fish", "-c", 'source fish; complete -C "harness status sma"', cwd=place)
    assert said.split()[0] == "small-20261125T070636Z-4ac3"


def test_zsh_reads_the_script(place: Path) -> None:
    text = "autoload -U compinit; compinit -u -D; source ./zsh; print -r -- ${_comps[harness]}"
    assert "_python_argcomplete" in shell("zsh", "-fc", text, cwd=place)
