"""Renders standalone reproducers: a script for torchrun, and a pytest test that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.infra import templating
from harness.plan.shrink.standalone import Standalone

NAME = "reproduce"
_TEMPLATES = Path(__file__).parent / "templates"


def render(found: Standalone, *, title: str, versions: str, ends: str = "") -> dict[str, str]:
    """File name -> text. `title`: one line on what is wrong; `versions`: of the projects that it was seen with.

    `ends`: a sentence on the code that fails and the code that does not.
    """
    environment = templating.environment(_TEMPLATES, autoescape=False, finalize=_as_is)
    values = {**found.values, "ranks": found.ranks, "needs": found.needs, "test": found.test, "name": NAME}
    texts = {f"{NAME}.py": found.template, f"test_{NAME}.py": "test"}
    return {
        file: environment.get_template(f"{template}.py.j2").render(**values, title=title, versions=versions, ends=ends)
        for file, template in texts.items()
    }


def _as_is(value: Any) -> Any:
    return value
