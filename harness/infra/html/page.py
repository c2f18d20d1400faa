"""What all pages share: templates, style sheet, script, and the policy that allows no other script or style."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.text.counts import counted
from harness.infra.html.filters import clipped, place_words
from harness.infra.html.marks import CHANGE_CLASSES, OUTCOME_MARKS

if TYPE_CHECKING:
    from harness.infra.templating import Environment

_TEMPLATES = Path(__file__).parent / "templates"


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The environment of all pages, with escaping on."""
    from harness.infra import templating

    made = templating.environment(_TEMPLATES, autoescape=True, finalize=templating.visible)
    made.filters.update(clip=clipped, counted=counted, place=place_words)
    made.globals.update(marks=OUTCOME_MARKS, change_classes=CHANGE_CLASSES)
    return made


def render(template: str, values: dict[str, Any], *styles: str) -> str:
    """A page; `styles`: style sheets besides the common one. Half of a surrogate pair becomes "?"."""
    style = "".join(_text(name) for name in ("style.css", *styles))
    script = _text("page.js")
    head = {"style": style, "script": script, "policy": _policy(style, script)}
    text = environment().get_template(template).render(**head, **values)
    return text.encode("utf-8", "replace").decode("utf-8")  # no file can hold a lone surrogate of a message


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Content Security Policy: nothing is fetched; of scripts and styles only the page's own are allowed, by hash."""
    allowed = f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; style-src '{_hash(style)}'"
    return f"{allowed}; script-src '{_hash(script)}'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
