"""Runs git in one repository, whatever other repository the caller's environment names (GIT_DIR).

A repository may come from anywhere: no hook, filter or helper program of it is executed, and reading it starts no
transfer from a remote that its configuration names.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.core.errors import InfrastructureError
from harness.core.secrets import redacted

TIMEOUT_S = 1800.0
LOG_LINES = 20
_SSH = "ssh -o ConnectTimeout=30"  # without it, a host that does not answer is waited for as long as TCP does
_TRANSPORTS = ("file", "git", "http", "https", "ssh")  # not ext, which runs a command, nor any other helper program
# These override every configuration file, the repository's included.
_SETTINGS = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("log.showSignature", "false"),  # would start gpg.program
)


# Replacements for the programs that a repository's configuration names, by the last part of the setting's name. An
# empty value removes all credential helpers that were named before it.
_INSTEAD = {
    "clean": "",
    "smudge": "",
    "process": "",
    "driver": "git merge-file -q --marker-size=%L %A %O %B",  # git's own merge of texts
    "uploadpack": "git-upload-pack",
    "vcs": "none",
    "sshcommand": _SSH,
    "askpass": "",
    "helper": "",
    "gitproxy": "",  # see _limits: the first value counts, not the last
}


_PROGRAMS = (
    r"^(filter\..*\.(clean|smudge|process)|merge\..*\.driver|remote\..*\.(uploadpack|vcs)"
    r"|core\.(sshcommand|askpass|gitproxy)|credential\.(.*\.)?helper)$"
)
_COMPLETING = (("gc.auto", "0"), ("maintenance.auto", "false"))  # a fetch would start them; gc runs a hook
Setting = tuple[str, str]
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # git sets them for its hooks


def run(
    repository: Path, *arguments: str, stdin: str = "", timeout_s: float = TIMEOUT_S, completing: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command; the caller reads its exit status. InfrastructureError if it cannot start or times out.

    `completing`: in a partial clone, fetch the objects that the command lacks, though not from a repository of this
    machine, whose configuration would then be read too.
    """
    settings = (*_SETTINGS, *_without_programs(repository, timeout_s), *(_COMPLETING if completing else ()))
    return _run(repository, settings, arguments, stdin, timeout_s, completing=completing)


def _without_programs(repository: Path, timeout_s: float) -> list[Setting]:
    """Settings that replace the programs that the repository's configuration names; those of the user's stay."""
    requested = ("config", "-z", "--includes", "--show-scope", "--get-regexp", _PROGRAMS)
    fields = _run(repository, _SETTINGS, requested, "", timeout_s).stdout.split("\0")[:-1]
    own, of_user = list[str](), list[Setting]()
    for scope, (name, _, value) in zip(fields[::2], (text.partition("\n") for text in fields[1::2])):
        if scope in ("local", "worktree"):
            own.append(name)
        else:
            of_user.append((name, value))
    settings = [(name, _INSTEAD[name.rpartition(".")[2]]) for name in own]
    filters = {name.rpartition(".")[0] for name in own if name.startswith("filter.")}
    settings += [(f"{name}.required", "false") for name in sorted(filters)]
    replaced = {_emptied(name) for name in own}
    if "core.sshcommand" not in dict(of_user) and not {"GIT_SSH", "GIT_SSH_COMMAND"} & os.environ.keys():
        settings.append(("core.sshcommand", _SSH))
    return [*settings, *(setting for setting in of_user if _emptied(setting[0]) in replaced)]


def _emptied(name: str) -> str:
    """Return the setting that clears this one: an empty credential helper removes those of all hosts."""
    return "credential.helper" if name.startswith("credential.") else name


def _run(
    repository: Path,
    settings: Sequence[Setting],
    arguments: Sequence[str],
    stdin: str,
    timeout_s: float,
    *,
    completing: bool = False,
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
            env={**environment(), **values, **_limits(dict(settings), completing=completing)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"git {arguments[0]} failed: {redacted(str(error))}") from error


def _limits(settings: Mapping[str, str], *, completing: bool) -> dict[str, str]:
    """Variables that limit what git may start; they override every configuration."""
    transports = [name for name in _transports() if name != "file" or not completing]
    limits = {"GIT_ALLOW_PROTOCOL": ":".join(transports)}
    if not completing:
        limits["GIT_NO_LAZY_FETCH"] = "1"
    if "core.gitproxy" in settings and "GIT_PROXY_COMMAND" not in os.environ:
        limits["GIT_PROXY_COMMAND"] = ""  # a later core.gitProxy would not count
    return limits


def _transports() -> list[str]:
    """For GIT_ALLOW_PROTOCOL; never more than the caller's environment allows."""
    requested = os.environ.get("GIT_ALLOW_PROTOCOL")
    return [name for name in _TRANSPORTS if requested is None or name in requested.split(":")]


def output(repository: Path, *arguments: str, stdin: str = "", completing: bool = False) -> str:
    """Standard output of a command; InfrastructureError with the end of its error output when it failed."""
    done = run(repository, *arguments, stdin=stdin, completing=completing)
    if done.returncode:
        requested = redacted(" ".join(arguments[:2]))
        raise InfrastructureError(f"git {requested} in {repository} failed:\n{end_of(done)}")
    return done.stdout


def end_of(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last lines of a command's error output, without credentials."""
    return redacted("\n".join((done.stderr or done.stdout or "").strip().splitlines()[-LOG_LINES:]))


def without_credentials(url: str) -> str:
    """Return a URL for display, without user and password; an ssh user, which is no secret, is kept."""
    if url.startswith(("http://", "https://")):
        return re.sub(r"^(https?://)[^/]*@", r"\1", url)
    return re.sub(r"^([a-z+]+://[^/:@]*):[^/]*@", r"\1@", url)


def repository_names(repository: str) -> list[str]:
    """What a repository is called: the last part of its URL; of a folder, that of its remote `origin`, and its own."""
    names = [repository]
    if (folder := Path(repository)).is_dir():
        remote = run(folder, "remote", "get-url", "origin")
        names = [*remote.stdout.split("\n", 1)[:1], folder.name]
    return [last for name in names if (last := re.split(r"[/:]", name.rstrip("/"))[-1].removesuffix(".git"))]


def environment() -> dict[str, str]:
    """This process's environment, without variables that name another repository or let git ask for a password."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    return {**kept, "GIT_TERMINAL_PROMPT": "0"}
