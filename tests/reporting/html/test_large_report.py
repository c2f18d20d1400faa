"""A report of many cells: failures and counts on report.html, every cell on one of the further pages."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from harness.campaign.reports import write_reports
from harness.core.outcomes import Outcome
from harness.core.run.report import Report
from harness.core.run.run_dir import RunDir
from harness.reporting.html.page import anchor
from harness.reporting.html.report import MAX_CELLS, PARTS_FOLDER, LargeReport, is_large, render_html, render_pages
from tests.sample_report import big_report, sample_report

FAILING = 7  # every seventh cell of a report


@lru_cache(maxsize=1)
def large_report() -> Report:
    """Cells of few steps, copied under other names until there are three pages."""
    first = big_report(100, 2, failing=FAILING)
    copies = [
        replace(cell, id=f"{cell.id}-{number}", control=cell.control and f"{cell.control}-{number}")
        for number in range(9)
        for cell in first.cells
    ]
    counts = {outcome: sum(cell.outcome is outcome for cell in copies) for outcome in Outcome}
    return replace(first, cells=copies, counts=counts)


@lru_cache(maxsize=1)
def pages() -> dict[str, str]:
    return dict(render_pages(large_report()))


def test_a_report_of_few_cells_is_one_file() -> None:
    report = sample_report()
    assert not is_large(report)
    assert dict(render_pages(report)) == {"report.html": render_html(report)}


def test_every_cell_is_on_one_further_page_with_its_details() -> None:
    report = large_report()
    assert is_large(report)
    assert list(pages()) == [
        "report.html",
        f"{PARTS_FOLDER}/001.html",
        f"{PARTS_FOLDER}/002.html",
        f"{PARTS_FOLDER}/003.html",
    ]
    places = [
        (name, cell) for name, text in pages().items() for cell in re.findall(r'<details [^>]*id="([^"]+)"', text)
    ]
    further = [cell for name, cell in places if name != "report.html"]
    assert sorted(further) == sorted(anchor(cell.id) for cell in report.cells)
    first = [cell for name, cell in places if name == "report.html"]
    assert len(first) == 120 < report.counts[Outcome.FAIL]


def test_links_between_pages_lead_to_cells() -> None:
    for name, text in pages().items():
        folder = Path(name).parent
        links = set(re.findall(r'href="([^"]*#cell-[^"]+)"', text))
        assert any(not link.startswith("#") for link in links) or name != "report.html"
        for link in links:
            page, _, target = link.partition("#")
            assert f'id="{target}"' in pages()[(folder / page).as_posix() if page else name]


def test_the_page_of_a_cell_links_its_control_on_another_page() -> None:
    report = large_report()
    control = report.cells[0]
    shared = [control, *(replace(cell, control=control.id) for cell in report.cells[1:])]
    found = dict(render_pages(replace(report, cells=shared)))
    assert f'href="#{anchor(control.id)}"' in found[f"{PARTS_FOLDER}/001.html"]
    assert f'href="001.html#{anchor(control.id)}"' in found[f"{PARTS_FOLDER}/003.html"]
    assert f'href="{PARTS_FOLDER}/001.html#{anchor(control.id)}"' in found["report.html"]


def test_the_first_page_counts_cells_and_has_a_list_for_the_search() -> None:
    text, report = pages()["report.html"], large_report()
    data = json.loads(re.search(r'id="all-cells">(.*?)</script>', text).group(1))  # type: ignore[union-attr]
    assert [cell[0] for cell in data["cells"]] == [cell.id for cell in report.cells]
    failing = [cell[0] for cell in data["cells"] if data["outcomes"][cell[1]][0] == "FAIL"]
    assert failing == [cell.id for cell in report.cells if cell.outcome is Outcome.FAIL]
    marks = re.findall(r'class="square o-\w+"[^>]*><b><span aria-hidden="true">.</span> ([\d,]+) ', text)
    assert sum(int(mark.replace(",", "")) for mark in marks) == len(report.cells)
    assert f"and {report.counts[Outcome.FAIL] - 120} more</a>" in text


def test_the_first_page_grows_by_little_per_cell() -> None:
    report = large_report()
    more = [replace(cell, id=f"{cell.id}-{number}") for number in range(4) for cell in report.cells]
    grown = len(render_html(replace(report, cells=more))) - len(pages()["report.html"])
    assert 0 < grown < 120 * (len(more) - len(report.cells))


def test_of_each_fault_class_some_cells_have_details() -> None:
    report = large_report()
    rare = [replace(item, fault_class="rare") for item in next(c for c in report.cells if c.findings).findings]
    last = replace(report.cells[-1], outcome=Outcome.FAIL, findings=rare)
    large = LargeReport(replace(report, cells=[*report.cells[:-1], last]))
    assert last in large.detailed
    assert len(large.detailed) == 120


def test_text_of_a_cell_cannot_end_the_list() -> None:
    report = large_report()
    odd = replace(report.cells[0], id="</script><b>&")
    data = LargeReport(replace(report, cells=[odd, *report.cells[1:]])).data
    assert "<" not in data and json.loads(data)["cells"][0][0] == odd.id


def test_pages_of_an_earlier_report_are_replaced(tmp_path: Path) -> None:
    run, report = RunDir(tmp_path), large_report()
    write_reports(run, report)
    assert len(list((tmp_path / PARTS_FOLDER).iterdir())) == 3
    write_reports(run, replace(report, cells=report.cells[: MAX_CELLS + 1]))
    assert sorted(path.name for path in (tmp_path / PARTS_FOLDER).iterdir()) == ["001.html", "002.html"]
