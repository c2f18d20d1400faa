"""Hostile texts, and readers that detect whether one of them took effect. Every output is tested with them.

A new attack is added here, so that every output is tested with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

from markdown_it import MarkdownIt
from markdown_it.token import Token

TEXTS = {
    "script": "<script>alert('x')</script><img src=x onerror=alert(1)>",
    "entities": "&lt;b&gt; &amp;amp; &#64;here &copy",
    "quotes": "\"quoted\" 'single' `code` ``two`` ```three",
    "markup": "**bold** __init__ GPTModel.__init__() ~~struck~~ *i* _i_ $x$ a_b_c cu_seqlens",
    "html comment": "<!-- hidden --> </details> <td>",
    "link": "[click](https://evil.example/x) ![pic](https://evil.example/p.png) <https://evil.example> [a][b] [a]: x",
    "bare link": "see https://evil.example/a_b?c=d, www.evil.example and HTTP://EVIL.example/#1",
    "mention": "@org/team and @torch.jit by me@evil.example @channel @here @all",
    "reference": "#123 org/repo#12 GH-7 fixes #1, :tada: :+1:",
    "table": "a|b | c \\| d ||",
    "heading": "# heading",
    "list": "- item",
    "ordered": "1. one 2) two",
    "rule": "--- | ---",
    "quote block": "> quoted",
    "fence": "~~~\n```\nlet me out\n````\n# out",
    "lines": "one\ntwo\r\nthree\rfour\u2028five\x85six\x0bseven",
    "backslash": "C:\\new\\table \\* \\",
    "github command": "boom\n::stop-commands::x\n  ::add-mask::a\n\t::error file=x::y ##[error]z\r::set-env name=a::b",
    "azure command": "##vso[task.setvariable variable=a]b",
    "gitlab section": "section_start:1:x[collapsed=true]\r\x1b[0Ktitle\nsection_end:1:x\r\x1b[0K",
    "terminal": "\x1b[2J\x1b]0;title\x07\x1b]8;;https://evil.example\x1b\\text\x1b]8;;\x1b\\ \x9b31m\x90q\x08\x00\x7f",
    "overwrite": "FAIL\rPASS\b\b\b\bPASS",
    "bidi": "a\u202egnp.exe \u2066b\u2069 \u200fc \ufeffd \u200be\u2060f",
    "surrogate": "half \ud800 pair \udfff",
    "not xml": "\ufffe\uffff ]]> <![CDATA[",
    "formula": '=HYPERLINK("https://evil.example","x")',
    "plus": "+1+cmd|' /C calc'!A0",
    "minus": "-2+3",
    "at": "@SUM(A1)",
    "tab": "\t=1",
    "slack": "<!channel> <@U123> <https://evil.example|good> <!date^1^{date}^https://evil.example|x>",
    "template": "{{ 7*7 }} {% raw %} ${x} %(x)s [bold]x[/bold]",
    "percent": "%0A%25 a,b:c %3A",
    "wide": "ＷＷＷ＝１ 漢字 🇩🇪 é é",  # noqa: RUF001
    "empty": "",
    "blank": " \n ",
}
LONG = "A" * 1_000_000
SECRET = "hunter2-hunter2"
SECRETS = {
    "in a URL": f"https://user:{SECRET}@example.org/x",
    "in a requirement": f"x @ git+https://u:{SECRET}@example.org/x.git",
    "in a query": f"https://example.org/x?token={SECRET}",
    "in a variable": f"DB_PASS={SECRET}",
    "in a header": f"Authorization: Bearer {SECRET}",
}
EVERYTHING = "\n".join([*TEXTS.values(), *SECRETS.values()])

UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
# Text that GitHub turns into links when it renders a page, except in code.
_LIVE_ON_GITHUB = re.compile(r"(?<![\w/])@\w|(?<!&)#\d|\bGH-\d|https?://|\bwww\.|\w@\w+\.\w", re.IGNORECASE)


@dataclass
class Page:
    """The rendered content of a Markdown page."""

    text: str = ""
    links: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)  # of tokens
    live: list[str] = field(default_factory=list)  # mentions, references and bare links
    fences: list[str] = field(default_factory=list)


def read_markdown(source: str) -> Page:
    """With CommonMark and GitHub's tables and strikethrough."""
    page = Page()
    for token in _flat(MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(source)):
        page.kinds.add(token.type)
        if token.type == "link_open":
            page.links.append(str(token.attrs["href"]))
        elif token.type in ("text", "text_special", "code_inline"):
            page.text += token.content
        elif token.type == "fence":
            page.fences.append(token.content)
    for block in _texts_outside_code(source):
        page.live += _LIVE_ON_GITHUB.findall(block)
    return page


def _texts_outside_code(source: str) -> Iterator[str]:
    """Runs of plain text, with a line feed in place of code."""
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(source):
        if token.type == "inline":
            yield "".join(
                child.content if child.type in ("text", "text_special") else "\n" for child in token.children or ()
            )


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


def commands_in(log: str) -> list[str]:
    """Lines of a log that a runner of GitHub, Azure, TeamCity or GitLab would take as a command of any name.

    GitHub: src/Runner.Common/ActionCommand.cs of actions/runner, TryParseV2 and TryParse; it reads lines as .NET does.
    """
    return [line for line in re.split(r"\r\n|\n|\r", log) if _is_command(line)] + re.findall(
        r"section_(?:start|end):\d+:[^\r\n]*(?=\r)", log
    )


def _is_command(line: str) -> bool:
    trimmed, at = line.lstrip(), line.find("##[")
    github = (trimmed.startswith("::") and trimmed.find("::", 2) >= 0) or (at >= 0 and line.find("]", at) >= 0)
    return github or "##vso[" in line or "##teamcity[" in line


def with_text_everywhere(value: Any, text: str) -> Any:
    """A dataclass, such as a report, with every text in it replaced.

    Enumerations, fields of literal types, numbers, keys and verdicts stay.
    """
    if isinstance(value, Enum) or (not isinstance(value, (str, Mapping, list, tuple)) and not is_dataclass(value)):
        return value
    if isinstance(value, str):
        return text
    if isinstance(value, Mapping):
        return {key: with_text_everywhere(item, text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(with_text_everywhere(item, text) for item in value)
    hints = get_type_hints(type(value))
    texts = [item.name for item in fields(value) if item.init and not _literal(hints[item.name])]
    changed = {name: with_text_everywhere(getattr(value, name), text) for name in texts}
    changed.pop("verdict", None)
    return replace(value, **changed)


def _literal(kind: Any) -> bool:
    return get_origin(kind) is Literal or any(map(_literal, get_args(kind)))
