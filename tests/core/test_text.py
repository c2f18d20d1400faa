from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import pytest

from harness.core.text import (
    chat_text,
    ci_json,
    ci_log,
    clip,
    counted,
    csv_cell,
    duration,
    markdown_code,
    markdown_fence,
    markdown_text,
    noun,
    one_line,
    visible,
)
from tests.hostile import EVERYTHING, LONG, TEXTS, UNSEEN, commands_in, read_markdown


@pytest.mark.parametrize(("number", "text"), [(0, "0 cells"), (1, "1 cell"), (2, "2 cells")])
def test_a_noun_is_in_the_plural_unless_there_is_one(number: int, text: str) -> None:
    assert counted(number, "cell") == text


def test_an_irregular_plural_is_given() -> None:
    assert [noun(number, "process", "processes") for number in (1, 2)] == ["process", "processes"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.4, "8 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text


hostile = pytest.mark.parametrize("text", [*TEXTS.values(), EVERYTHING], ids=[*TEXTS, "everything"])
_PLAIN = {"inline", "text", "text_special", "code_inline", "paragraph_open", "paragraph_close"}
_LIST = {"bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close"}


@hostile
def test_markdown_renders_the_text_itself(text: str) -> None:
    for form in (markdown_text, markdown_code):
        page = read_markdown(form(text))
        assert page.text.strip() == one_line(text)
        assert page.kinds <= _PLAIN
        assert page.live == []


@hostile
def test_markdown_stays_within_a_list_item_and_a_table_cell(text: str) -> None:
    for form in (markdown_text, markdown_code):
        shown = form(text)
        page = read_markdown(f"- {shown}\n- end")
        assert page.kinds <= _PLAIN | _LIST
        table = read_markdown(f"| a | b |\n|---|---|\n| x{shown} | end |\n\nafter")
        assert table.text.replace(" ", "") == f"abx{one_line(text)}endafter".replace(" ", "")
        assert table.live == []


@hostile
def test_a_fence_holds_its_text(text: str) -> None:
    page = read_markdown("\n".join([*markdown_fence(text, "text"), "", "after"]))
    assert page.fences == [visible(text.replace("\r\n", "\n")) + "\n"]
    assert page.text == "after"
    assert not UNSEEN.search(page.fences[0])


@hostile
def test_xml_holds_the_visible_text(text: str) -> None:
    element = ElementTree.Element("a", said=visible(text))
    element.text = visible(text)
    read = ElementTree.fromstring(ElementTree.tostring(element, encoding="unicode").encode())
    assert read.text in (element.text, None if not text else element.text)
    assert read.get("said") == visible(text)


@hostile
def test_no_ci_system_finds_a_command(text: str) -> None:
    shown = ci_log(visible(text))
    assert commands_in(shown) == []
    assert commands_in(f"prefix {shown}") == []
    assert ci_log(shown) == shown


@hostile
def test_json_without_a_command_has_the_same_values(text: str) -> None:
    shown = ci_json(json.dumps([text, {text: "##[error]x ##vso[x] section_end:1:x"}], ensure_ascii=False))
    assert commands_in(shown) == []
    assert json.loads(shown) == [text, {text: "##[error]x ##vso[x] section_end:1:x"}]


def test_the_reader_of_commands_finds_commands() -> None:
    """Otherwise the test above would pass without any escaping."""
    for name in ("github command", "azure command", "gitlab section"):
        assert commands_in(TEXTS[name])


def test_log_lines_that_are_not_commands_are_unchanged() -> None:
    text = "at::Tensor c10::Error\nharness: a::b::c\n## heading [x]\n#[derive(x)]\nsection_start of the log"
    assert ci_log(text) == text


@hostile
def test_a_spreadsheet_computes_nothing(text: str) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([["a", "b"], [csv_cell(text), "end"]])
    _, row = csv.reader(io.StringIO(stream.getvalue()))
    assert row[1] == "end"
    assert row[0].removeprefix("'") == visible(text)
    assert not row[0].strip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))


def test_numbers_stay_numbers_in_a_table() -> None:
    assert [csv_cell(value) for value in (-1, -2.5, None, "-3.5e-07", "+1")] == [
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
    stream.feed("before\r\n" + visible(text).expandtabs().replace("\n", "\r\n") + "\r\nafter")
    lines = [line.rstrip() for line in screen.display]
    wanted = ["before", *visible(text).expandtabs().split("\n"), "after"]
    assert [_narrow(line) for line in lines[: len(wanted)]] == [_narrow(line).rstrip() for line in wanted]
    assert screen.title == ""
    assert not UNSEEN.search(visible(text))


def _narrow(line: str) -> str:
    """The ASCII characters of a line: wide ones take two cells, and combining marks join the one before."""
    return "".join(char for char in line if char.isascii()).rstrip()


@hostile
def test_chat_systems_find_no_markup(text: str) -> None:
    shown = chat_text(text)
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
    for form in (one_line, visible, markdown_code, chat_text, ci_log):
        rest = iter(form(text))
        assert all(char in rest for char in letters)


def test_long_texts_are_cut_with_a_note() -> None:
    assert clip("abc", 3) == "abc"
    assert clip(LONG, 10) == f"{'A' * 10} … (999990 more characters)"
    assert len(markdown_text(LONG, 600)) < 700
