"""Every output format is read by a real parser of it, which must give back the text and nothing else."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import pytest

from harness.core.text import escaping
from tests.hostile import EVERYTHING, LONG, TEXTS, UNSEEN, commands_in, read_markdown

hostile = pytest.mark.parametrize("text", [*TEXTS.values(), EVERYTHING], ids=[*TEXTS, "everything"])
_PLAIN = {"inline", "text", "text_special", "code_inline", "paragraph_open", "paragraph_close"}
_LIST = {"bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"}


@hostile
def test_markdown_renders_the_text_itself(text: str) -> None:
    for form in (escaping.markdown_text, escaping.markdown_code):
        page = read_markdown(form(text))
        assert page.text.strip() == escaping.one_line(text)
        assert page.kinds <= _PLAIN
        assert page.live == []


@hostile
def test_markdown_stays_within_a_list_item_and_a_table_cell(text: str) -> None:
    for form in (escaping.markdown_text, escaping.markdown_code):
        shown = form(text)
        page = read_markdown(f"- {shown}\n- end")
        assert page.kinds <= _PLAIN | _LIST
        table = read_markdown(f"| a | b |\n|---|---|\n| x{shown} | end |\n\nafter")
        assert table.text.replace(" ", "") == f"abx{escaping.one_line(text)}endafter".replace(" ", "")
        assert table.live == []


@hostile
def test_a_fence_holds_its_text(text: str) -> None:
    page = read_markdown("\n".join([*escaping.markdown_fence(text, "text"), "", "after"]))
    assert page.fences == [escaping.visible(text.replace("\r\n", "\n")) + "\n"]
    assert page.text == "after"
    assert not UNSEEN.search(page.fences[0])


@hostile
def test_xml_holds_the_visible_text(text: str) -> None:
    element = ElementTree.Element("a", said=escaping.visible(text))
    element.text = escaping.visible(text)
    read = ElementTree.fromstring(ElementTree.tostring(element, encoding="unicode").encode())
    assert read.text in (element.text, None if not text else element.text)
    assert read.get("said") == escaping.visible(text)


@hostile
def test_no_ci_system_finds_a_command(text: str) -> None:
    shown = escaping.ci_log(escaping.visible(text))
    assert commands_in(shown) == []
    assert commands_in(f"prefix {shown}") == []
    assert escaping.ci_log(shown) == shown


@hostile
def test_json_without_a_command_has_the_same_values(text: str) -> None:
    shown = escaping.ci_json(json.dumps([text, {text: "##[error]x ##vso[x] section_end:1:x"}], ensure_ascii=False))
    assert commands_in(shown) == []
    assert json.loads(shown) == [text, {text: "##[error]x ##vso[x] section_end:1:x"}]


def test_the_reader_of_commands_finds_commands() -> None:
    """Otherwise the test above would pass without any escaping."""
    for name in ("github command", "azure command", "gitlab section"):
        assert commands_in(TEXTS[name])


def test_log_lines_that_are_not_commands_are_unchanged() -> None:
    text = "at::Tensor c10::Error\nharness: a::b::c\n## heading [x]\n#[derive(x)]\nsection_start of the log"
    assert escaping.ci_log(text) == text


@hostile
def test_a_spreadsheet_computes_nothing(text: str) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([["a", "b"], [escaping.csv_cell(text), "end"]])
    _, row = csv.reader(io.StringIO(stream.getvalue()))
    assert row[1] == "end"
    assert row[0].removeprefix("'") == escaping.visible(text)
    assert not row[0].strip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))


def test_numbers_stay_numbers_in_a_table() -> None:
    assert [escaping.csv_cell(value) for value in (-1, -2.5, None, "-3.5e-07", "+1")] == [
        -1,
        -2.5,
        None,
        "-3.5e-07",
        "+1",
    ]


@hostile
def test_a_terminal_shows_the_text_and_does_nothing_else(text: str) -> None:
    import pyte

    screen = pyte.Screen(300, 90)
    stream = pyte.Stream(screen)
    stream.feed("before\r\n" + escaping.visible(text).expandtabs().replace("\n", "\r\n") + "\r\nafter")
    lines = [line.rstrip() for line in screen.display]
    wanted = ["before", *escaping.visible(text).expandtabs().split("\n"), "after"]
    assert [_narrow(line) for line in lines[: len(wanted)]] == [_narrow(line).rstrip() for line in wanted]
    assert screen.title == ""
    assert not UNSEEN.search(escaping.visible(text))


def _narrow(line: str) -> str:
    """The ASCII characters of a line: wide ones take two cells, and combining marks join the one before."""
    return "".join(char for char in line if char.isascii()).rstrip()


@hostile
def test_chat_systems_find_no_markup(text: str) -> None:
    shown = escaping.chat_text(text)
    assert "\n" not in shown and not UNSEEN.search(shown)
    assert "<" not in shown and ">" not in shown
    page = read_markdown(shown.replace("&lt;", "").replace("&gt;", ""))  # Mattermost reads Markdown
    assert page.links == []
    assert "image" not in page.kinds and "code_inline" not in page.kinds
    assert not [word for word in shown.split("@")[1:] if word[:1] != "\u2060"]


@hostile
def test_nothing_is_escaped_out_of_sight(text: str) -> None:
    """All letters and digits of the text appear, in order."""
    letters = "".join(char for char in text if char.isascii() and char.isalnum())
    for form in (escaping.one_line, escaping.visible, escaping.markdown_code, escaping.chat_text, escaping.ci_log):
        rest = iter(form(text))
        assert all(char in rest for char in letters)


def test_long_texts_are_cut_with_a_note() -> None:
    assert escaping.clip("abc", 3) == "abc"
    assert escaping.clip(LONG, 10) == f"{'A' * 10} … (999990 more characters)"
    assert len(escaping.markdown_text(LONG, 600)) < 700
