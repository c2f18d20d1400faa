"""Templates, for reports and for job files; the only file that imports jinja2."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, TemplateError, TemplateSyntaxError

from harness.words.errors import InputError, Problem

__all__ = ["Environment", "environment", "render_user_template", "visible"]
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def visible(value: Any) -> Any:
    """Control characters of a text made visible, for `finalize` of pages."""
    return _CONTROL.sub("\ufffd", value) if type(value) is str else value


def environment(folder: Path, *, autoescape: bool, finalize: Callable[[Any], Any]) -> Environment:
    """Templates of one folder. A name that the caller did not give is an error; every printed value passes `finalize`.

    `autoescape` escapes for HTML.
    """
    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not autoescape,
        finalize=finalize,
    )


def render_user_template(templates: Environment, file: Path, values: dict[str, Any]) -> str:
    """The text of a template that a user may have written; InputError names file and line of what is wrong with it."""
    try:
        return templates.get_template(file.name).render(values)
    except TemplateSyntaxError as error:
        problem = Problem(message=f"not a valid template: {error.message}", file=str(file), line=error.lineno)
        raise InputError(problem) from error
    except TemplateError as error:
        raise InputError(Problem(message=f"cannot be rendered: {error}", file=str(file))) from error
