"""report.html as text: complete, escaped, self-contained, small, deterministic."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report
from harness.core.secrets import without_secrets
from harness.core.serialization import dumps, from_jsonable, loads
from harness.core.stack import CheckedOut, StackFacts, Version
from harness.reporting.html.report import banner_versions, outcome_grids, provenance_rows, render_html
from tests.sample_report import HOSTILE, big_report, hostile_report, passing_report, sample_report

OLDER = StackFacts(
    python="3.11.9",
    packages=(Version(name="megatron-core", version="0.17.1"), Version(name="torch", version="2.11.0")),
)
VOID = {"meta", "link", "br", "rect"}


class Page(HTMLParser):
    """Tags, ids, links and text of a page; unbalanced tags are collected."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.classes: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.attributes: set[str] = set()
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self._texts: list[str] = []
        self.feed(html)
        self.unbalanced += self._open

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._count(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._count(tag, attrs)

    def _count(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        values = dict(attrs)
        self.attributes |= set(values)
        self.classes.update((values.get("class") or "").split())
        if values.get("id"):
            self.ids.append(str(values["id"]))
        if tag == "a":
            self.links.append(str(values["href"]))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        if not self._open or self._open[-1] not in ("style", "script"):
            self._texts.append(data)


@pytest.fixture(scope="module")
def sample() -> str:
    return render_html(sample_report())


def test_the_same_report_gives_the_same_text(sample: str) -> None:
    assert render_html(sample_report()) == sample


def test_a_report_read_back_from_json_gives_the_same_text(sample: str) -> None:
    assert render_html(from_jsonable(Report, loads(dumps(sample_report())))) == sample


@pytest.mark.parametrize("report", [sample_report(), passing_report(), hostile_report(), big_report(10)])
def test_pages_are_balanced_with_unique_ids_and_no_broken_links(report: Report) -> None:
    page = Page(render_html(report))
    assert page.unbalanced == []
    assert [name for name, count in Counter(page.ids).items() if count > 1] == []
    assert {link for link in page.links if link[0] != "#" or link[1:] not in page.ids} == set()


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run(sample: str) -> None:
    page = Page(sample)
    assert page.tags.keys().isdisjoint({"iframe", "img", "object", "embed", "form"})
    assert page.attributes.isdisjoint({"src", "srcset", "onclick", "onload", "style"})
    assert page.tags["script"] == page.tags["style"] == 1
    policy = unescape(re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', sample)[0])
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", sample, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert re.findall(r'<link[^>]*href="(?!data:)', sample) == []
    assert re.findall(r"url\((?!#)|@import", sample) == []


def test_the_page_shows_verdict_failures_grid_curves_ranks_speed_rejected_cells_provenance_in_order(
    sample: str,
) -> None:
    order = [
        "<h1>",
        "h-failures",
        "h-known",
        "h-grid",
        "h-curves",
        "h-evidence",
        "h-throughput",
        "h-canaries",
        "h-rejected",
        "h-cells",
    ]
    places = [
        sample.index(f'id="{name}"' if name[0] == "h" else name) for name in [*order, "h-reference", "h-provenance"]
    ]
    assert places == sorted(places)


def test_the_banner_shows_verdict_counts_run_andbanner_versions(sample: str) -> None:
    text = Page(sample[: sample.index("<nav")]).text
    for part in ("✕ Failed", "2 failed, 1 could not be decided", "smoke-20260822T101530Z-3f2a", "61.8 s", "0.19.2"):
        assert part in text
    assert "2026-08-22T10:15:30+00:00" in text and "not installed" not in text


def test_the_banner_names_all_stacks_with_the_versions_that_differ() -> None:
    report = sample_report()
    stacks = {"older": OLDER}
    bad = (Outcome.FAIL, Outcome.ERROR)
    cells = [
        replace(cell, axes={**cell.axes, "stack": "older"}) if cell.outcome in bad else cell for cell in report.cells
    ]
    mixed = replace(report, cells=cells, provenance=replace(report.provenance, stacks=stacks))
    assert dict(banner_versions(mixed))["stacks"] in ("older, default", "default, older")
    assert "0.17.1 (older)" in dict(banner_versions(mixed))["megatron-core"]
    assert "0.19.2 (default)" in dict(banner_versions(mixed))["megatron-core"]
    green = replace(mixed, cells=[cell for cell in cells if cell.outcome not in bad])
    assert ("megatron-core", "0.19.2") in banner_versions(green) and "stack" not in dict(banner_versions(green))


def test_the_banner_of_a_run_with_one_stack_shows_its_versions_and_not_the_launchers() -> None:
    report = sample_report()
    stacks = {"older": OLDER}
    cells = [replace(cell, axes={**cell.axes, "stack": "older"}) for cell in report.cells]
    assert banner_versions(replace(report, cells=cells, provenance=replace(report.provenance, stacks=stacks))) == [
        ("harness", "0.1.0"),
        ("stack", "older"),
        ("python", "3.11.9"),
        ("torch", "2.11.0"),
        ("megatron-core", "0.17.1"),
    ]
    many = [replace(cell, axes={**cell.axes, "stack": f"s{number}"}) for number, cell in enumerate(report.cells)]
    assert dict(banner_versions(replace(report, cells=many)))["stacks"] == f"{len(many)} stacks"


def test_provenance_shows_a_stack_as_lines_of_text_and_hides_its_secrets() -> None:
    checkout = CheckedOut(
        project="megatron-lm", ref="", commit="1a2b+changes.3c", reverted=("4d", "5e"), repository="/lm"
    )
    stack = StackFacts(
        requested=("six",),
        checkouts=(checkout, replace(checkout, project="skyrl", ref="main", commit="", reverted=())),
        packages=(Version(name="google-auth", version="2.30"),),
        env={"A": "1", "HF_TOKEN": "hunter2hunter2"},
    )
    torch = Version(name="torch", version="2.15.0")
    provenance = Provenance(stacks={"s": stack}, imports_of_stacks={"s": [torch]})
    report = without_secrets(replace(sample_report(), provenance=provenance))
    assert {row.name: row.text for row in provenance_rows(report) if "stacks." in row.name} == {
        "stacks.s.requested": "six",
        "stacks.s.checkouts": "megatron-lm working tree = 1a2b+changes.3c without 4d, 5e of /lm\n"
        "skyrl main = unknown of /lm",
        "stacks.s.commits.megatron-lm": "1a2b+changes.3c",
        "stacks.s.packages": "google-auth==2.30",
        "stacks.s.env": "A=1\nHF_TOKEN=***",
        "imports_of_stacks.s": "torch 2.15.0",
    }


def test_a_failing_cell_names_the_first_place_the_bound_the_fault_and_the_command(sample: str) -> None:
    start = sample.index("tp2-pp4-cp1-sft", sample.index('class="number">F1<'))
    text = Page("<p>" + sample[start : sample.index('class="number">F2<')]).text
    for part in ("stage 1", "tp 1", "cp 0", "layer 2", "micro-batch 0", "field cu_seqlens_q", "rank 3"):
        assert part in text
    assert "4 places; ranks 3, 5; stages 1, 2; layers 2, 3" in text
    assert "[0, 1, 4, 23, 27, 46, 64]" in text
    assert "A metadata: middle stages without cu_seqlens" in text
    assert "TypeError: 'NoneType' object is not subscriptable" in text and "rope_utils.py" in text
    assert "harness run matrices/smoke.yaml --only tp2-pp4-cp1-sft" in text


def test_a_bound_is_shown_with_its_origin(sample: str) -> None:
    assert "0.0001 relative (control 2.1)" in Page(sample).text
    assert "fp32 layouts of megatron-core 0.16 to 0.19 on CPU agree to about 1e-7" in Page(sample).text


def test_a_passing_run_has_no_failure_section() -> None:
    html = render_html(passing_report())
    assert "✓ Passed" in html and 'id="failures"' not in html and 'id="known"' not in html


def test_a_report_without_cells_is_still_a_page() -> None:
    empty = replace(
        sample_report(), cells=[], rejected=[], counts={}, timing={}, provenance=Provenance(), verdict="error"
    )
    assert Page(render_html(empty)).unbalanced == []


def test_the_grid_has_one_square_for_each_cell_and_each_rejected_cell(sample: str) -> None:
    report = sample_report()
    assert Page(sample).classes["square"] == len(report.cells) + len(report.rejected)


def test_a_reference_that_the_matrix_itself_asks_for_is_marked_as_control_and_drawn_once() -> None:
    report = passing_report()
    cells = [replace(cell, role="cell") for cell in report.cells]
    html = render_html(replace(report, cells=cells))
    assert outcome_grids(replace(report, cells=cells))[0].rows[0][1][-1][0].note == "control"
    assert "the reference and 3 cells" in html


def test_of_many_cells_with_one_fault_only_two_are_expanded() -> None:
    html = render_html(big_report(20, failing=2))
    assert html.count('<details class="cell o-FAIL"') == 10
    assert len(re.findall(r'<details class="cell o-FAIL" [^>]* open>', html)) == 2


def test_every_outcome_is_shown_as_a_word_and_not_only_as_a_colour(sample: str) -> None:
    text = Page(sample[sample.index('id="h-grid"') : sample.index('id="h-curves"')]).text
    for word in ("✓ pass", "✕ fail", "✕ known failure", "– rejected", "! error", "↻ flaky"):  # noqa: RUF001
        assert word in text


def test_text_from_the_data_is_escaped_everywhere() -> None:
    html = render_html(hostile_report())
    page = Page(html)
    assert html.count("<script") == page.tags["script"] == 1 and "<b>bold" not in html
    assert "{{ 7*7 }}" in page.text
    assert page.text.count("<script>alert('x')</script>") >= 10
    assert "\x1b" not in html
    html.encode("utf-8")


def test_hostile_text_is_really_in_the_hostile_report() -> None:
    assert dumps(hostile_report()).count(dumps(HOSTILE)[1:-1]) >= 10


@pytest.mark.parametrize("failing", [None, 7, 1])
def test_a_hundred_cells_of_eight_ranks_stay_under_three_megabytes(failing: int | None) -> None:
    html = render_html(big_report(failing=failing))
    assert len(html.encode()) < 3_000_000
    assert Page(html).classes["square"] == 100


def test_long_texts_are_cut_with_a_note() -> None:
    report = sample_report()
    cell = next(cell for cell in report.cells if cell.failure)
    assert cell.failure
    findings = [replace(cell.findings[0], message="m" * 100_000)] * 40
    failure = replace(cell.failure, traceback="t" * 1_000_000 + "THE END")
    html = render_html(replace(report, cells=[replace(cell, findings=findings, failure=failure)]))
    assert len(html) < 200_000
    assert "THE END" in html and "the log has the beginning" in html
    assert "28 more findings are in report.json" in html and "more characters)" in html
