"""Commands of git, each in one repository, free of what the caller's environment says of another."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from harness.words.errors import InfrastructureError

TIMEOUT_S = 1800.0
LOG_LINES = 20
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # git sets them for its hooks


def run(
    repository: Path, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """A command whose exit status the caller reads; InfrastructureError when it does not end by itself."""
    try:
        return subprocess.run(
            ["git", "-C", str(repository), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env=environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"git {arguments[0]} did not end well: {error}") from error


def output(repository: Path, *arguments: str, stdin: str = "") -> str:
    """What a command printed; InfrastructureError with the end of its complaint when it failed."""
    done = run(repository, *arguments, stdin=stdin)
    if done.returncode:
        raise InfrastructureError(f"git {' '.join(arguments[:2])} in {repository} failed:\n{end_of(done)}")
    return done.stdout


def end_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last lines of what a command said."""
    return "\n".join((done.stderr or done.stdout or "").strip().splitlines()[-LOG_LINES:])


def environment() -> dict[str, str]:
    """This process's, without what would lead git to another repository or have it ask for a password."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}
