"""Texts for readers: counts, durations, and untrusted text escaped for each output format. Pure.

A text may come from a matrix, a log, an exception, a commit or a damaged file. It must stay readable and must not be
interpreted as markup, a link, a mention, a formula, a control sequence or a CI command. Characters that a format cannot
hold are shown as escapes such as \\x1b. Every output of the harness uses these functions. In page templates, jinja2
escapes markup on top of `visible`.
"""

from __future__ import annotations

import html
import re


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return the number with its noun, e.g. "1 cell", "3 cells", "2 rank processes"."""
    return f"{number} {noun(number, one, many)}"


def noun(number: int, one: str, many: str | None = None) -> str:
    """Return the noun alone, in the form that the number needs."""
    return one if number == 1 else many or f"{one}s"


def duration(seconds: float) -> str:
    """ "8 s", "3 min 05 s", "2 h 07 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


# C0 except tab and line feed, DEL, C1; invisible characters and those that change the direction of text; lone
# surrogates and the two noncharacters that XML cannot hold.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
# GitHub interprets these in plain text, even after a backslash: @org/team, a@b.c, #123, GH-1, URLs, :tada:
_LIVE = re.compile(r"@\w|#\d|\bGH-\d|://|\bwww\.|\bmailto:|\bxmpp:|:[a-z+-][\w+-]*:", re.IGNORECASE)
# An underscore between letters or digits is not markup; unescaped, names like cu_seqlens stay readable in the source.
_PUNCTUATION = re.compile(r"([\\`*~\[\]|$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_AROUND = re.compile(r"([(\[\"'<]*)(.*?)([)\]\"'>.,;]*)", re.DOTALL)
_LINE_START = re.compile(r"^(?:([#+=:-])(?!\d)|(\d+)([.)])(?= |$))")
# Commands in logs: GitHub runners trim a line and look for "::", for "##[" anywhere; Azure reads "##vso["; GitLab
# folds at section_start and section_end.
_COMMAND_START = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
_COMMAND_INSIDE = re.compile(r"#(?=#(?:vso)?\[)")
_SECTION = re.compile(r"(section_(?:start|end)):(?=\d)")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 - spreadsheets take both


def visible(text: str) -> str:
    """Return the text with every invisible character as `\\xNN` or `\\uNNNN`; tabs and line feeds stay.

    Safe for a terminal; for XML and HTML, markup must be escaped on top.
    """
    return _UNSEEN.sub(_escape, text)


def one_line(text: str, most: int | None = None) -> str:
    """Return the `visible` text on one line, runs of white space as one space, clipped to `most` characters."""
    line = visible(" ".join(text.replace("\r", " ").split()))
    return line if most is None else clip(line, most)


def html_text(text: str) -> str:
    """Return the text escaped for HTML or SVG written without a template, between tags or in an attribute."""
    return html.escape(visible(text))


def clip(text: str, most: int) -> str:
    """Return the first `most` characters, with a note of how many were left out."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most} more characters)"


def markdown_text(text: str, most: int | None = None) -> str:
    """One line that GitHub-flavoured Markdown renders as the text itself, in a paragraph, list item or table cell.

    Words that would become a mention, a reference or a link are put into code spans, where GitHub leaves them alone.
    """
    words = one_line(text, most).split(" ")
    line = " ".join(_as_code(word) if _LIVE.search(word) else _escaped(word) for word in words)
    return _LINE_START.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", line)


def markdown_code(text: str, most: int | None = None) -> str:
    """Return a one-line code span. A pipe would end a table cell even in code, so it is escaped between two spans."""
    return "\\|".join(_span(part) for part in one_line(text, most).split("|"))


def markdown_fence(text: str, language: str = "") -> list[str]:
    """Return the lines of a fenced block; the fence is longer than any run of backticks in the text, so nothing closes
    it.
    """
    lines = visible(text.replace("\r\n", "\n")).split("\n")
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *lines, fence]


def ci_log(text: str) -> str:
    """Return the text, changed so that no CI system interprets a line as a command."""
    text = _SECTION.sub(r"\1 :", _COMMAND_INSIDE.sub("# ", text))
    return _COMMAND_START.sub(r"\1: ", text)


def ci_json(text: str) -> str:
    """Return the JSON text of the same value in which no CI system finds a command. A line of JSON never begins with
    "::".
    """
    return _SECTION.sub(r"\1\\u003a", _COMMAND_INSIDE.sub(r"\\u0023", text))


def csv_cell(value: object) -> object:
    """Return the value for a CSV file; a text that a spreadsheet would evaluate gets a leading apostrophe."""
    if not isinstance(value, str):
        return value
    risky = value.lstrip(" ").startswith(_FORMULA) and not _is_number(value)
    return f"'{visible(value)}" if risky else visible(value)


def chat_text(text: str, most: int | None = None) -> str:
    """One line for Slack and Mattermost, in which no link, picture, mention or code block is interpreted."""
    line = one_line(text, most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")
    line = re.sub(r"\](?=[(\[:])", "] ", line).replace("![", "! [")
    return line.replace("@", "@\u2060")  # a word joiner: invisible, and it breaks a mention


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _escaped(word: str) -> str:
    word = word.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _PUNCTUATION.sub(r"\\\1", word)


def _as_code(word: str) -> str:
    """Return the word as a code span; brackets and punctuation around it stay outside."""
    before, inside, after = _AROUND.fullmatch(word).groups()  # type: ignore[union-attr]  # fits every text
    return f"{_escaped(before)}{markdown_code(inside)}{_escaped(after)}"


def _span(text: str) -> str:
    """Return a code span with more backticks than any run inside the text; renderers drop the space on either side."""
    if not text.strip():
        return text
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{'`' * (longest + 1)}{pad}{text}{pad}{'`' * (longest + 1)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
