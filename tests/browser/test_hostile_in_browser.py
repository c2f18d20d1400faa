"""Every page with hostile text in each field, in a real browser: nothing is executed or fetched, everything fits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, ReportCell, Weight
from harness.core.run.run_plan import Selection
from harness.core.stack import CheckedOut, StackFacts
from harness.history.database import opened
from harness.history.page import render_history, render_index
from harness.history.queries import Filters
from harness.history.trends import run_row
from harness.reporting.compare.runs import compare_runs
from harness.reporting.html.compare import render_comparison_html
from harness.reporting.html.report import render_html
from harness.runs.listing import FailingCell, IndexedRun
from tests.browser.test_compare_in_browser import with_since
from tests.browser.test_report_in_browser import BROKEN_LINKS, OPEN_ALL, open_view
from tests.hostile import EVERYTHING, LONG, with_text_everywhere

pytestmark = pytest.mark.browser
WIDTHS = (400, 1200)
# Tags and attribute names: hostile text must not add any.
ELEMENTS = """() => [...document.querySelectorAll("*")].flatMap((node) =>
  [node.localName, ...node.getAttributeNames().map((name) => `${node.localName} ${name}`)])"""
# Elements whose text overflows them.
SPILLED = """() => [...document.querySelectorAll("td, th, dd, li, p, figcaption, .square, .pill, .chip")]
  .filter((node) => node.checkVisibility() && node.scrollWidth > node.clientWidth + 2 && node.clientWidth)
  .filter((node) => getComputedStyle(node).display !== "inline" && getComputedStyle(node).overflowX === "visible")
  .map((node) => `${node.localName}.${node.getAttribute("class")} in ${node.parentElement.localName}`)"""
MAX_PIXELS = 400_000  # height of a page with everything unfolded; texts are cut, and a page grows with its checks


def full_report() -> Report:
    """The sample report with every optional field set."""
    report = with_since()
    cells = [replace(cell, evidence=Weight(records=8, legs=3, steps=2, numbers=41216)) for cell in report.cells]
    return replace(
        report,
        cells=[_with_causes(cell) for cell in cells],
        problems=["its events are damaged", "no agent ended"],
        selection=Selection(
            strength=2, cells=11, allowed=14, covered=9, possible=9, impossible={"why": 1}, kept={"why": 1}
        ),
    )


def _with_causes(cell: ReportCell) -> ReportCell:
    findings = [replace(finding, known="issue", follows_from="ended", fault_class="a") for finding in cell.findings]
    if cell.failure is None:
        return replace(cell, findings=findings, reason="reason", known="elsewhere")
    words = {"failure_class": "a", "title": "b", "domain": "c", "role": "d", "advice": "e", "follows_from": "f"}
    return replace(cell, findings=findings, failure=replace(cell.failure, **words))


def hostile_report(text: str) -> Report:
    """Like `with_text_everywhere`, with the text also in those keys that are data."""
    report: Report = with_text_everywhere(full_report(), text)
    cells = [
        replace(
            cell,
            axes={**cell.axes, text: text},
            canaries={**cell.canaries, text: text},
            findings=[replace(item, where={**item.where, text: text}, measured={text: text}) for item in cell.findings],
        )
        for cell in report.cells
    ]
    floor = next(floor for floors in report.noise.values() for floor in floors.values())
    return replace(
        report,
        cells=cells,
        noise={text: {text: floor}},
        timing={**report.timing, text: 1.0},
        provenance=_keyed(report, text),
    )


def _keyed(report: Report, text: str) -> Provenance:
    checkout = CheckedOut(project=text, ref=text, commit=text, reverted=(text,), repository=text)
    stack = StackFacts(checkouts=(checkout,), python=text, env={text: text})
    return replace(report.provenance, packages={text: text}, stacks={text: stack})


def _report(text: str, _: Path) -> str:
    return render_html(hostile_report(text))


def _compare(text: str, _: Path) -> str:
    """A comparison with cells of one run only, and with the same cells with other findings."""
    report = hostile_report(text)
    before = full_report()
    same = [replace(new, id=old.id) for new, old in zip(report.cells, before.cells)]
    return render_comparison_html(compare_runs(before, replace(report, cells=[*same, report.cells[-4]])))


def _history(text: str, folder: Path) -> str:
    plain = run_row(full_report())
    row = with_text_everywhere(plain, text)
    cells = tuple(
        replace(cell, cell_id=f"{text}{number}", name=f"{text}{number}", outcome=old.outcome, known=old.known)
        for number, (cell, old) in enumerate(zip(row.cells, plain.cells))
    )
    path = folder / "history.sqlite"
    with opened(path, write=True) as history:
        for day in ("20", "21", "22"):
            started = f"2026-08-{day}T10:15:30Z"
            history.record(replace(row, run_id=f"{text}{day}", started=started, cells=cells), folder)
    with opened(path, write=False) as history:
        return render_history(history, Filters(matrix=None), days=30, now="2026-08-23T00:00:00Z")


def _index(text: str, _: Path) -> str:
    """Runs of every state; one with a page and failing cells."""
    cells = [FailingCell(id=text, message=text)] * 2
    run = IndexedRun(run_id=f"{text[:100]}1", matrix=text, started="20260820T101530Z", state="finished", verdict="fail")
    run = replace(run, counts={text: 3}, failing=cells, more=2, files=["report.json"], has_page=True)
    others = [replace(run, run_id=f"{text[:100]}{number}", state=state) for number, state in enumerate(STATES)]
    return render_index([run, *others], history=True)


STATES = ("running", "interrupted", "unreadable")
PAGES: dict[str, Callable[[str, Path], str]] = {
    "report": _report,
    "compare": _compare,
    "history": _history,
    "index": _index,
}
FILES = re.compile(r"([\w.~-]|%[0-9A-F]{2})+/[\w.~-]*(#[\w.~-]+)?|history\.html")  # relative links to runs


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Callable[[str, Path], str]:
    return PAGES[request.param]


@pytest.mark.parametrize("text", [EVERYTHING, LONG], ids=["everything", "long"])
def test_a_page_of_hostile_text_is_harmless_and_fits(
    page: Callable[[str, Path], str], text: str, browser: Browser, tmp_path: Path
) -> None:
    files: dict[str, Path] = {}
    for name, said in (("harmless", "plain"), ("hostile", text)):
        (tmp_path / name).mkdir()
        files[name] = tmp_path / f"{name}.html"
        files[name].write_text(page(said, tmp_path / name), encoding="utf-8")
    assert files["hostile"].stat().st_size < 20e6
    harmless = open_view(browser, files["harmless"])
    wanted = Counter(harmless.page.evaluate(ELEMENTS))
    harmless.page.context.close()
    for width in WIDTHS:
        view = open_view(browser, files["hostile"], width=width)
        found = Counter(view.page.evaluate(ELEMENTS))
        assert (found - wanted, wanted - found) == (Counter(), Counter())
        assert [link for link in view.page.evaluate(BROKEN_LINKS) if not FILES.fullmatch(link)] == []
        for _ in ("folded", "unfolded"):
            assert view.page.evaluate(SPILLED) == []
            assert view.overflow() <= 0
            assert view.page.evaluate("() => document.documentElement.scrollHeight") < MAX_PIXELS
            view.page.evaluate(OPEN_ALL)
        assert view.complaints == []
        view.page.context.close()
