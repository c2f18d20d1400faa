"""Every output of a report, with hostile text in every field. New outputs belong here too."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import junitparser
import pytest

from harness.core.run.report import Report
from harness.core.serialization import from_jsonable, loads
from harness.reporting.announcement import annotation_lines, announcement
from harness.reporting.compare.render import render_comparison_markdown
from harness.reporting.compare.runs import compare_runs
from harness.reporting.html.compare import render_comparison_html
from harness.reporting.html.report import render_html
from harness.reporting.output_files import write_table
from harness.reporting.render_json import render_json
from harness.reporting.render_junit import render_junit
from harness.reporting.render_markdown import render_markdown
from tests.hostile import EVERYTHING, TEXTS, UNSEEN, read_markdown, with_text_everywhere
from tests.sample_report import sample_report

hostile = pytest.mark.parametrize("text", [*TEXTS.values(), EVERYTHING], ids=[*TEXTS, "everything"])
drawn = pytest.mark.parametrize("text", [TEXTS["script"], TEXTS["template"], EVERYTHING])  # a page takes a second
_PAGE = {"inline", "text", "text_special", "code_inline", "softbreak", "strong_open", "strong_close"}
_PAGE |= {f"{kind}_{end}" for kind in ("heading", "paragraph", "bullet_list", "list_item") for end in ("open", "close")}
_PAGE |= {f"{kind}_{end}" for kind in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")}


def hostile_report(text: str) -> Report:
    report = with_text_everywhere(sample_report(), text)
    assert isinstance(report, Report)
    return report


@hostile
def test_a_markdown_page_contains_only_the_harnesss_own_markup(text: str) -> None:
    report = hostile_report(text)
    for source in (render_markdown(report), render_comparison_markdown(compare_runs(sample_report(), report))):
        page = read_markdown(source)
        assert page.kinds <= _PAGE
        assert page.live == []
        assert page.links == []
        assert not UNSEEN.search(source)


@hostile
def test_junit_is_read_by_its_readers(text: str) -> None:
    source = render_junit(hostile_report(text))
    root = ElementTree.fromstring(source.encode())
    assert {element.tag for element in root.iter()} <= {
        *("testsuites", "testsuite", "properties", "property", "testcase", "failure", "error", "skipped", "system-out")
    }
    assert len(root.findall("testsuite/testcase")) == 13
    (suite,) = junitparser.JUnitXml.fromstring(source.encode())
    assert suite.tests == 13


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def tags_of(page: str) -> _Tags:
    found = _Tags()
    found.feed(page)
    return found


@drawn
def test_pages_have_the_elements_of_a_harmless_one(text: str) -> None:
    plain, report = hostile_report("plain"), hostile_report(text)
    for page, harmless in (
        (render_html(report), render_html(plain)),
        (
            render_comparison_html(compare_runs(sample_report(), report)),
            render_comparison_html(compare_runs(sample_report(), plain)),
        ),
    ):
        found, wanted = tags_of(page), tags_of(harmless)
        assert found.tags <= wanted.tags | {"br"}
        assert found.attributes <= wanted.attributes
        assert [link for link in found.links if not link.startswith(("#", "data:,"))] == []
        assert not UNSEEN.search(page)


@hostile
def test_an_annotation_is_one_command_with_its_own_name(text: str) -> None:
    for line in annotation_lines(hostile_report(text), text):
        assert re.fullmatch(r"::(error|notice) (?:[a-z]+=[^:,\r\n]*,?)*::[^\r\n]*", line)
        assert not UNSEEN.search(line)


@hostile
def test_chat_messages_are_plain_lines(text: str) -> None:
    said = announcement(hostile_report(text), exit_code=1, directory=text)["text"]
    assert not UNSEEN.search(said)
    assert re.findall(r"[<>`]|!\[|\]\(|@(?!\u2060)", said) == []
    assert len(said.splitlines()) < 40


@hostile
def test_a_table_has_its_rows_and_computes_nothing(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"cell": text, "value": 1.5, "last": "end"}, {"cell": "x", "value": -1, "last": text}]
    write_table(rows, "csv", tmp_path / "a.csv")
    head, first, second = csv.reader(io.StringIO((tmp_path / "a.csv").read_bytes().decode()))
    assert (head, first[1:], second[:2]) == (["cell", "value", "last"], ["1.5", "end"], ["x", "-1"])
    assert not first[0].strip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))


@hostile
def test_json_preserves_texts(text: str) -> None:
    if re.search("[\ud800-\udfff]", text):
        text = text.encode("utf-8", "replace").decode()
    report = hostile_report(text)
    assert json.loads(render_json(report))["cells"][0]["id"] == text
    assert from_jsonable(Report, loads(render_json(report))).cells[0].reproduce == text
