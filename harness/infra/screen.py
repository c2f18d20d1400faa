"""All output of the harness. Text for people contains no control sequence, no secret and no command of a CI system.

Values for programs go out unchanged; secrets are removed where those are made. In a CI job, whose log may show them,
JSON is written with escapes (`json_data`), and CSV through `guarded`. A failed write never changes a verdict.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, cast

from harness.core.secrets import redacted, secret_values
from harness.core.text import ci_json, ci_log, visible

LOGGER = "harness"  # name of the logger
_MIN_TEXT = 40  # columns of a text beside its head

# Variables by which a CI runner is recognised: GitHub, GitLab, Azure, and what most others set.
_CI_VARIABLES = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "TF_BUILD")


@dataclass
class View:
    """How much is shown, and in colour or not; the command line sets it before anything is printed."""

    quiet: bool = False  # -q: only what did not pass, and the verdict
    verbose: bool = False  # -v: every cell as it starts and ends, every finding
    color: str = "auto"  # auto | always | never
    durations: int = 0  # the slowest cells to list
    silent: bool = False  # for callers in Python: what would be printed is logged


VIEW = View()


def out(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print text for people, on stdout unless another stream is given."""
    if VIEW.silent:
        log(text)
        return
    print(shown(text), file=guarded(stream or sys.stdout), end=end)


def err(text: str) -> None:
    """Print text for people on stderr."""
    if VIEW.silent:
        log(text, warning=True)
        return
    out(text, sys.stderr)


def log(text: str, *, warning: bool = False) -> None:
    """Log text for people, as `VIEW.silent` asks for."""
    import logging  # not for --help

    logging.getLogger(LOGGER).log(logging.WARNING if warning else logging.INFO, "%s", shown(text))


def data(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print output for programs."""
    print(text, file=stream or sys.stdout, end=end)


def json_data(text: str) -> None:
    """Print JSON for programs. In a CI job, with the same values, but so that the runner reads no command in it."""
    sys.stdout.write(ci_json(text) if in_ci(os.environ) else text)


def shown(text: str) -> str:
    """Return a text for display: control characters are escaped, secrets removed."""
    return visible(redacted(text, environment_secrets()))


def width() -> int | None:
    """Columns of the terminal, or of $COLUMNS; None for a file, whose lines may have any length."""
    given = os.environ.get("COLUMNS", "")
    if not sys.stdout.isatty() and not given.isdecimal():
        return None
    return max(shutil.get_terminal_size().columns, 20)


def wrapped(text: str) -> str:
    """Return the text with lines broken at spaces where the terminal would break them in a word or an id."""
    columns = width()
    return text if columns is None else broken(text, columns)


def beside(head: str, text: str) -> str:
    """Return the head of a row and its text, whose further lines begin below the first, if that leaves them room."""
    columns = width()
    if columns is None or len(head) + len(text) <= columns:
        return f"{head}{text}"
    indent = len(head) if columns - len(head) >= _MIN_TEXT else len(head) - len(head.lstrip(" ")) + 4
    return "\n".join(_filled(f"{head}{text}", columns, " " * indent))


def broken(text: str, columns: int) -> str:
    """Return the text with lines of at most `columns`, broken at spaces; a longer word, such as an id, stays whole."""
    return "\n".join(_wrapped(line, columns) for line in text.split("\n"))


def _wrapped(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    return "\n".join(_filled(line, columns, " " * (len(line) - len(line.lstrip(" ")) + 4)))


def _filled(line: str, columns: int, indent: str) -> list[str]:
    return textwrap.wrap(
        line,
        columns,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )


def relative_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below it, else unchanged."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def guarded(stream: TextIO) -> TextIO:
    """Return the stream; in a CI job, wrapped to escape lines that the runner would read as commands. Apply it last."""
    return cast(TextIO, _Guarded(stream)) if in_ci(os.environ) else stream


def in_ci(environment: Mapping[str, str]) -> bool:
    return any(environment.get(name, "").lower() not in ("", "0", "false") for name in _CI_VARIABLES)


def environment_secrets() -> tuple[str, ...]:
    """Values of environment variables whose names say that they are secret."""
    return secret_values(os.environ)


class _Guarded:
    """A text stream whose `write` passes through `ci_log`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(ci_log(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _PipeFile(io.FileIO):
    """A descriptor that ignores a closed pipe: `harness report RUN | head` must end as it does without the pipe.

    A write to a closed terminal fails with EIO, besides the signal SIGHUP.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._ignored = (errno.EPIPE, errno.EIO) if self.isatty() else (errno.EPIPE,)

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in self._ignored:
                raise
            return len(memoryview(data).cast("B"))


def own_streams() -> None:
    """Replace stdout and stderr: a closed pipe is ignored, and every character can be written.

    A character that the locale's encoding lacks is written as an escape. A stream that the caller has closed becomes
    the null device.
    """
    sys.stdout = _opened_stream(1, sys.stdout)
    sys.stderr = _opened_stream(2, sys.stderr)


def _opened_stream(descriptor: int, old: TextIO | None) -> TextIO:
    try:
        os.fstat(descriptor)
    except OSError:
        old = None
    if old is None:
        descriptor = os.open(os.devnull, os.O_WRONLY)
    raw = _PipeFile(descriptor)
    encoding = old.encoding if old else "utf-8"
    # As Python does: stderr by line, stdout by line on a terminal only.
    by_line = descriptor == 2 or raw.isatty()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=by_line
    )


def flush_streams() -> str:
    """Flush stdout and stderr; returns the error, e.g. a full disk, or an empty string."""
    problem = ""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            problem = problem or f"the output cannot be written: {error.strerror}"
            descriptor = os.open(os.devnull, os.O_WRONLY)
            with contextlib.suppress(OSError):  # the stream has no descriptor
                os.dup2(descriptor, stream.fileno())  # else the flush at the end of the process would fail again
    return problem
