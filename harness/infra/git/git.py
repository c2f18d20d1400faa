"""Commands of git, each in one repository, free of what the caller's environment says of another.

A repository may come from anywhere: nothing that it brings along is executed for what the harness asks of it.
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
# Before what any configuration says, the repository's own included.
_SETTINGS = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("log.showSignature", "false"),  # would start gpg.program
)
# What takes the place of programs that a repository's own configuration names, by the last part of the setting's name.
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
    """A command whose exit status the caller reads; InfrastructureError when it does not end by itself."""
    settings = (*_SETTINGS, *_without_programs(repository, timeout_s))
    return _run(repository, settings, arguments, stdin, timeout_s)


def _without_programs(repository: Path, timeout_s: float) -> list[Setting]:
    """Takes away the programs that the repository's own configuration has files pass through, or merges them with;
    the user's stay."""
    asked = ("config", "--includes", "--show-scope", "--name-only", "--get-regexp", _PROGRAMS)
    found = _run(repository, _SETTINGS, asked, "", timeout_s).stdout.splitlines()
    names = [name for scope, _, name in (line.partition("\t") for line in found) if scope in ("local", "worktree")]
    settings = [(name, _INSTEAD[name.rpartition(".")[2].lower()]) for name in names]
    required = {name.rpartition(".")[0] for name in names if name.lower().startswith("filter.")}
    return [*settings, *((f"{name}.required", "false") for name in sorted(required))]


def _run(
    repository: Path, settings: Sequence[Setting], arguments: Sequence[str], stdin: str, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    # By variables: a name may hold "=", at which `-c name=value` would be cut.
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
        raise InfrastructureError(f"git {arguments[0]} did not end well: {redacted(str(error))}") from error


def _transports() -> list[str]:
    """As a variable, which no configuration overrules; what the caller's environment forbids stays forbidden."""
    asked = os.environ.get("GIT_ALLOW_PROTOCOL")
    return [name for name in _TRANSPORTS if asked is None or name in asked.split(":")]


def output(repository: Path, *arguments: str, stdin: str = "") -> str:
    """What a command printed; InfrastructureError with the end of its complaint when it failed."""
    done = run(repository, *arguments, stdin=stdin)
    if done.returncode:
        asked = redacted(" ".join(arguments[:2]))
        raise InfrastructureError(f"git {asked} in {repository} failed:\n{end_of(done)}")
    return done.stdout


def end_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last lines of what a command said, without credentials."""
    return redacted("\n".join((done.stderr or done.stdout or "").strip().splitlines()[-LOG_LINES:]))


def without_credentials(url: str) -> str:
    """A URL that may be shown: without user and password; the user of ssh, which is no secret, stays."""
    if url.startswith(("http://", "https://")):
        return re.sub(r"^(https?://)[^/]*@", r"\1", url)
    return re.sub(r"^([a-z+]+://[^/:@]*):[^/]*@", r"\1@", url)


def environment() -> dict[str, str]:
    """This process's, without what would lead git to another repository or have it ask for a password."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}
