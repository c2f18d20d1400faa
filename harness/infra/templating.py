"""Renders templates of reports and job files. Only this file imports jinja2.

Templates of job files may come with an untrusted matrix: they are rendered in jinja2's sandbox, with limits.
"""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateNotFound, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from jinja2.loaders import split_template_path
from jinja2.sandbox import ImmutableSandboxedEnvironment

from harness.core.errors import InputError, Problem
from harness.core.text import clip
from harness.core.text import visible as visible_text
from harness.infra.files import MIB, is_file, read_text

__all__ = ["Environment", "environment", "render_user_template", "visible"]
_MAX_TEXT = 8000  # characters of one value on a page
MAX_BYTES = MIB // 4  # of a template
MAX_CHARACTERS = MIB  # of what it renders
MAX_SECONDS = 2.0  # of processor time
MAX_MEMORY = 512 * MIB  # in addition to what the process has
MAX_POWER = 1_000_000  # bits of the result, about: no signal interrupts a single operation


def visible(value: Any) -> Any:
    """For `finalize` of pages: invisible characters are escaped, and long texts cut to what a browser can show."""
    return visible_text(clip(value, _MAX_TEXT)) if type(value) is str else value


def environment(folder: Path, *, autoescape: bool, finalize: Callable[[Any], Any]) -> Environment:
    """Return the environment for the harness's templates of one folder. An undefined name is an error.

    Every printed value passes `finalize`; `autoescape` escapes for HTML.
    """
    return Environment(loader=FileSystemLoader(folder), **_options(autoescape, finalize))


def render_user_template(file: Path, values: dict[str, Any], *, finalize: Callable[[Any], Any]) -> str:
    """Render a template that a user may have written; InputError with file and line of an error in it.

    It may include only templates of the same folder. Any exception counts as an error of the template.
    """
    templates = _Sandbox(loader=_BoundedLoader(file.parent), **_options(False, finalize))
    try:
        with _limited():
            return _joined(templates.get_template(file.name).generate(values))
    except InputError:
        raise
    except TemplateSyntaxError as error:
        at = error.filename or str(file)
        raise InputError(
            Problem(message=f"not a valid template: {error.message}", file=at, line=error.lineno)
        ) from error
    except Exception as error:
        kind = "" if isinstance(error, _OutOfBoundsError) else f"{type(error).__name__}: "
        at, line = _place(error, file)
        what = str(error).splitlines()[0] if str(error) else "no details"
        raise InputError(Problem(message=f"cannot be rendered: {kind}{what[:300]}", file=at, line=line)) from error


def _options(autoescape: bool, finalize: Callable[[Any], Any]) -> dict[str, Any]:
    return {
        "autoescape": autoescape,
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": not autoescape,
        "finalize": finalize,
    }


class _OutOfBoundsError(Exception):
    """A template exceeds a limit."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, in which powers are bounded too."""

    intercepted_binops = frozenset(["**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        bits = abs(left).bit_length() * abs(right) if type(left) is type(right) is int else 0
        if bits > MAX_POWER:
            raise SecurityError(f"{left} ** {right} is too large")
        return super().call_binop(context, operator, left, right)


class _BoundedLoader(FileSystemLoader):
    """Loads templates of one folder; they must be regular files of bounded size."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        path = Path(self.searchpath[0], *split_template_path(template))
        if not is_file(path):
            raise TemplateNotFound(template)
        return read_text(path, MAX_BYTES), str(path), lambda: True


def _joined(parts: Iterator[str]) -> str:
    found: list[str] = []
    size = 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size > MAX_CHARACTERS:
            raise _OutOfBoundsError(f"more than {MAX_CHARACTERS:,} characters")
    return "".join(found)


@contextmanager
def _limited() -> Iterator[None]:
    """Limits memory and, in the main thread, processor time of the block."""

    def stop(*_: Any) -> None:
        raise _OutOfBoundsError(f"it takes more than {MAX_SECONDS:g} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _address_space() + MAX_MEMORY
    timed = threading.current_thread() is threading.main_thread()
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    before = signal.signal(signal.SIGVTALRM, stop) if timed else None
    try:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    """Bytes that the process has mapped."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def _place(error: Exception, file: Path) -> tuple[str, int | None]:
    """Return the innermost template line in the error's traceback; jinja2 gives its frames the template's name and
    lines.
    """
    place: tuple[str, int | None] = (str(file), None)
    trace = error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if Path(name).parent == file.parent:
            place = (name, trace.tb_lineno)
        trace = trace.tb_next
    return place
