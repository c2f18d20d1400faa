"""A scripted Slurm: programs on PATH that give one prepared answer per call, and a clock that tests move."""

from __future__ import annotations

from pathlib import Path

import pytest

PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "sinfo", "srun")
AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
PROGRAM = """\
#!/bin/sh
cd "$(dirname "$0")" || exit 99
name=$(basename "$0")
echo "$name $*" >> calls
number=1
while [ -e "$name.$number.played" ]; do number=$((number + 1)); done
if [ -e "$name.$number" ]; then : > "$name.$number.played"; . "./$name.$number"; else . "./$name.last"; fi
"""


def says(*lines: str) -> str:
    """An answer that prints lines."""
    return "".join(f"echo '{line}'\n" for line in lines)


def fails(words: str) -> str:
    """An answer that prints to standard error and ends with exit code 1."""
    return f"echo '{words}' >&2\nexit 1\n"


class Scheduler:
    """By default Slurm knows no job, and every sbatch submits job 1."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...] = ()) -> None:
        self.folder = folder / "slurm"
        self.folder.mkdir()
        for name in (*PROGRAMS, *more):
            path = self.folder / name
            path.write_text(PROGRAM)
            path.chmod(0o755)
            self.answers(name, says("Submitted batch job 1") if name == "sbatch" else "")
        monkeypatch.setenv("PATH", str(self.folder), prepend=":")

    def answers(self, program: str, *answers: str) -> None:
        """Set what a program does at its next calls, as shell scripts; the last answer repeats."""
        for number, answer in enumerate(answers[:-1], start=1):
            (self.folder / f"{program}.{number}").write_text(answer)
        (self.folder / f"{program}.last").write_text(answers[-1])

    def calls(self, program: str = "") -> list[str]:
        """The commands that were called, with their arguments."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(program)]


class Clock:
    """A clock that moves only when `sleep` is called."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
