"""Runs git in one repository, whatever other repository the caller's environment names (GIT_DIR).

A repository may come from anywhere: no hook, filter or helper program of it is executed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from harness.core.errors import InfrastructureError
from harness.core.text.secrets import redacted

TIMEOUT_S = 1800.0
LOG_LINES = 20
_TRANSPORTS = ("file", "git", "http", "https", "ssh")  # not ext, which runs a command, nor any other helper program
# These override every configuration file, the repository's included.
_SETTINGS = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("log.showSignature", "false"),  # would start gpg.program
)
# Replacements for the programs that a repository's configuration names, by the last part of the setting's name.
_INSTEAD = {
    "clean": "",
    "smudge": "",
    "process": "",
    "driver": "git merge-file -q --marker-size=%L %A %O %B",  # git's own merge of texts
}
_PROGRAMS = r"^(filter\..*\.(clean|smudge|process)|merge\..*\.driver)$"
Setting = tuple[str, str]
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # git sets them for its hooks


def run(
    repository: Path, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a command; the caller reads its exit status. InfrastructureError if it cannot start or times out."""
    settings = (*_SETTINGS, *_without_programs(repository, timeout_s))
    return _run(repository, settings, arguments, stdin, timeout_s)


def _without_programs(repository: Path, timeout_s: float) -> list[Setting]:
    """Settings that replace the filters and merge drivers of the repository's configuration; the user's stay."""
    requested = ("config", "--includes", "--show-scope", "--name-only", "--get-regexp", _PROGRAMS)
    found = _run(repository, _SETTINGS, requested, "", timeout_s).stdout.splitlines()
    names = [name for scope, _, name in (line.partition("\t") for line in found) if scope in ("local", "worktree")]
    settings = [(name, _INSTEAD[name.rpartition(".")[2].lower()]) for name in names]
    required = {name.rpartition(".")[0] for name in names if name.lower().startswith("filter.")}
    return [*settings, *((f"{name}.required", "false") for name in sorted(required))]


def _run(
    repository: Path, settings: Sequence[Setting], arguments: Sequence[str], stdin: str, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    # Passed in environment variables: a name may contain "=", and `-c name=value` would be split there.
    values = {f"HARNESS_GIT_VALUE_{number}": value for number, (_, value) in enumerate(settings)}
    options = [f"--config-env={name}={variable}" for (name, _), variable in zip(settings, values)]
    try:
        return subprocess.run(
            ["git", "-C", str(repository), *options, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={**environment(), **values, "GIT_ALLOW_PROTOCOL": ":".join(_transports())},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"git {arguments[0]} failed: {redacted(str(error))}") from error


def _transports() -> list[str]:
    """For GIT_ALLOW_PROTOCOL, which overrides every configuration; never more than the caller's environment allows."""
    requested = os.environ.get("GIT_ALLOW_PROTOCOL")
    return [name for name in _TRANSPORTS if requested is None or name in requested.split(":")]


def output(repository: Path, *arguments: str, stdin: str = "") -> str:
    """Standard output of a command; InfrastructureError with the end of its error output when it failed."""
    done = run(repository, *arguments, stdin=stdin)
    if done.returncode:
        requested = redacted(" ".join(arguments[:2]))
        raise InfrastructureError(f"git {requested} in {repository} failed:\n{end_of(done)}")
    return done.stdout


def end_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last lines of a command's error output, without credentials."""
    return redacted("\n".join((done.stderr or done.stdout or "").strip().splitlines()[-LOG_LINES:]))


def without_credentials(url: str) -> str:
    """A URL for display, without user and password; an ssh user, which is no secret, is kept."""
    if url.startswith(("http://", "https://")):
        return re.sub(r"^(https?://)[^/]*@", r"\1", url)
    return re.sub(r"^([a-z+]+://[^/:@]*):[^/]*@", r"\1@", url)


def environment() -> dict[str, str]:
    """This process's environment, without variables that name another repository or let git ask for a password."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}
