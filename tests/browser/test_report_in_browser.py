"""The report in a real browser: sample and big, light and dark, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

from harness.reporting.html.report import render_html, render_pages
from tests.reporting.html.test_large_report import large_report
from tests.sample_report import big_report, hostile_report, sample_report

pytestmark = pytest.mark.browser

REPORTS = {"sample": sample_report, "big": big_report, "hostile": hostile_report}
VIEWS = [(scheme, width) for scheme in ("light", "dark") for width in (1400, 380)]

# Contrast of each element that directly contains text against the nearest opaque background, by WCAG 2.1, 1.4.3.
LOW_CONTRAST = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.slice(0, 3).map((c) => linear(c / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const known = new Map([[null, [255, 255, 255]]]);
  const ground = (node) => {
    if (!known.has(node)) {
      const colour = channels(getComputedStyle(node).backgroundColor);
      known.set(node, colour.length < 4 || colour[3] === 1 ? colour : ground(node.parentElement));
    }
    return known.get(node);
  };
  const low = [];
  let seen = 0;
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility()) continue;
    const style = getComputedStyle(node);
    const text = channels(node.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const back = ground(node);
    const mixed = text.slice(0, 3).map((c, i) => c * style.opacity + back[i] * (1 - style.opacity));
    const [high, dark] = [luminance(mixed), luminance(back)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (dark + 0.05);
    seen += 1;
    const name = `<${node.tagName} ${node.className}> ${node.textContent.slice(0, 30)}`;
    if (ratio < 4.5) low.push(`${ratio.toFixed(2)} ${name}`);
  }
  return {low: [...new Set(low)], seen};
}"""
EMPTY_DRAWINGS = """() => [...document.querySelectorAll("svg")].filter((node) => {
  const box = node.getBoundingClientRect();
  return node.checkVisibility() && !(box.width > 0 && box.height > 0 && node.getAttribute("aria-label"));
}).length"""
BROKEN_LINKS = """() => [...document.querySelectorAll("a[href]")].map((node) => node.getAttribute("href"))
  .filter((href) => !(href.startsWith("#") && document.getElementById(decodeURIComponent(href.slice(1)))))
  .filter((href) => !/^https:\\/\\/github\\.com\\/[\\w.-]+\\/[\\w.-]+\\/(issues|pull)\\/\\d+$/.test(href))"""
PLACES = """() => [...document.querySelectorAll(".grid td")].map((place) => {
  const bottom = place.getBoundingClientRect().bottom;
  return [...place.querySelectorAll(".square")].map((node) => bottom - node.getBoundingClientRect().bottom);
})"""
# Boxes of tables, and the navigation, that are narrower than what they hold.
CUT_OFF = """(names) => names.flatMap((name) => [...document.querySelectorAll(name)])
  .filter((node) => node.scrollWidth > node.clientWidth + 1).map((node) => node.getAttribute("aria-label") || "nav")"""
OPEN_ALL = "() => document.querySelectorAll('details').forEach((node) => { node.open = true; })"


@dataclass
class View:
    """An open page, and the browser's errors, warnings, dialogs and network requests."""

    page: Page
    complaints: list[str]

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return int(
            self.page.evaluate("() => { const e = document.scrollingElement; return e.scrollWidth - e.clientWidth; }")
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    paths = {name: folder / f"{name}.html" for name in REPORTS}
    for name, path in paths.items():
        path.write_text(render_html(REPORTS[name]()), encoding="utf-8")
    return paths


def open_view(browser: Browser, path: Path, scheme: str = "light", width: int = 1400, **options: Any) -> View:
    """A page opened in a new context. `width`: pixels; `options`: of Browser.new_context."""
    complaints: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"console {message.type}: {message.text}")

    def on_request(request: Request) -> None:
        if not request.url.startswith(("file:", "data:")):
            complaints.append(f"request: {request.url}")

    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, **options)  # type: ignore[arg-type]
    page = context.new_page()
    page.on("console", on_console)
    page.on("pageerror", lambda error: complaints.append(f"page error: {error}"))
    page.on("request", on_request)
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.goto(path.as_uri())
    return View(page, complaints)


@pytest.fixture(
    params=[(name, *view) for name in REPORTS for view in VIEWS], ids=lambda value: "-".join(map(str, value))
)
def view(request: pytest.FixtureRequest, browser: Browser, files: dict[str, Path]) -> Iterator[View]:
    name, scheme, width = request.param
    view = open_view(browser, files[name], scheme, width)
    yield view
    view.page.context.close()


def test_a_report_renders_cleanly_folded_and_unfolded(view: View) -> None:
    for _ in ("folded", "unfolded"):
        assert view.overflow() <= 0
        assert view.page.evaluate(EMPTY_DRAWINGS) == 0
        contrast = view.page.evaluate(LOW_CONTRAST)
        assert contrast["low"] == [] and contrast["seen"] > 100
        view.page.evaluate(OPEN_ALL)
    assert view.page.evaluate(BROKEN_LINKS) == []
    assert view.complaints == []


@pytest.mark.parametrize("name", REPORTS)
def test_the_grid_has_one_square_for_each_cell(browser: Browser, files: dict[str, Path], name: str) -> None:
    report = REPORTS[name]()
    view = open_view(browser, files[name])
    squares = view.page.locator("#grid a.square")
    assert squares.count() == len(report.cells) + len(report.rejected)
    view.page.context.close()


def test_squares_of_cells_that_share_a_place_do_not_cover_the_next_row(browser: Browser, tmp_path: Path) -> None:
    report = sample_report()
    first = report.cells[0]
    twins = [replace(first, id=f"{first.id}-{number}") for number in range(3)]
    page_file = tmp_path / "report.html"
    page_file.write_text(render_html(replace(report, cells=(*report.cells, *twins))))
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(page_file.as_uri())
    below = page.evaluate(PLACES)  # per place and square: pixels from its lower edge to that of the place
    page.close()
    assert max(map(len, below)) >= 4
    assert min(pixels for squares in below for pixels in squares) >= 0


@pytest.mark.smoke
def test_a_square_leads_to_the_failing_cell(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["sample"])
    view.page.locator("#grid a.square.o-FAIL").first.click()
    view.page.locator("details:target .first .message").wait_for()
    view.page.context.close()


def test_dark_is_dark_and_light_is_light(browser: Browser, files: dict[str, Path]) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        view = open_view(browser, files["sample"], scheme)
        ground = view.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        line = view.page.evaluate("() => getComputedStyle(document.querySelector('.plot text')).fill")
        grounds.append((ground, line))
        view.page.context.close()
    assert grounds[0] == ("rgb(246, 247, 249)", "rgb(87, 96, 107)")
    assert grounds[1] == ("rgb(15, 19, 24)", "rgb(155, 167, 180)")


def test_the_report_is_whole_without_scripts(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["sample"], java_script_enabled=False)
    page = view.page
    assert page.locator("h2").all_inner_texts()[0] == "Failures"
    page.locator("details.cell .fold summary").first.click()
    assert page.locator("details.cell .fold table").first.is_visible()
    assert view.complaints == []
    page.context.close()


def test_the_checks_above_detect_a_broken_page(browser: Browser, files: dict[str, Path], tmp_path: Path) -> None:
    html = files["sample"].read_text(encoding="utf-8").replace("Content-Security-Policy", "x-none")
    broken = html.replace(
        "<main",
        '<p style="width: 5000px; color: #eee; background: #fff">pale</p><svg></svg><a href="#nowhere">x</a>'
        '<script>console.error("bad"); throw new Error("worse")</script><img src="http://example.invalid/x.png"><main',
    )
    path = tmp_path / "broken.html"
    path.write_text(broken, encoding="utf-8")
    view = open_view(browser, path)
    assert view.overflow() > 3000
    assert view.page.evaluate(EMPTY_DRAWINGS) == 1
    assert [text.split()[1] for text in view.page.evaluate(LOW_CONTRAST)["low"]] == ["<P"]
    assert view.page.evaluate(BROKEN_LINKS) == ["#nowhere"]
    seen = " ".join(view.complaints)
    assert "console error: bad" in seen and "worse" in seen and "request: http://example.invalid/x.png" in seen
    view.page.context.close()


def test_scripts_and_styles_that_are_not_the_pages_own_are_blocked(
    browser: Browser, files: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "broken.html"
    strange = '<p onclick="alert(1)" style="width: 5000px">x</p><script>document.title = "taken"</script>'
    path.write_text(files["sample"].read_text(encoding="utf-8").replace("<main", f"{strange}<main"), encoding="utf-8")
    view = open_view(browser, path)
    view.page.locator("p[onclick]").click()
    assert view.page.title() != "taken"
    assert view.overflow() <= 0
    assert len(view.complaints) == 3 and all("Content Security Policy" in text for text in view.complaints)
    view.page.context.close()


def test_a_command_is_copied(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["sample"], permissions=["clipboard-read", "clipboard-write"])
    cell = view.page.locator("details.cell[open]").first
    cell.locator("button.copy").click()
    cell.get_by_text("Copied").wait_for()
    assert view.page.evaluate("() => navigator.clipboard.readText()") == cell.locator("pre.command").inner_text()
    view.page.context.close()


def test_a_link_to_a_folded_cell_opens_it(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["sample"])
    view.page.locator("#grid a.square.o-PASS").first.click()
    opened = view.page.locator("#evidence details:target[open]")
    opened.wait_for()  # the page opens it after the click has returned
    assert opened.locator("table").first.is_visible()
    view.page.context.close()


def test_the_filter_shows_only_the_cells_asked_for_everywhere(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["sample"])
    page, bar = view.page, view.page.locator(".filter")
    shown = "() => document.querySelectorAll('#cells tbody tr:not([hidden])').length"
    assert bar.locator("output").inner_text() == "13 cells"
    bar.get_by_label("Outcome").select_option("FAIL")
    assert bar.locator("output").inner_text() == "2 of 13 cells"
    assert page.evaluate(shown) == page.locator("#grid .square:visible").count() == 2
    assert page.locator("details.cell:visible").count() == 2 and not page.locator("#evidence .fold:visible").count()
    bar.get_by_label("Lane").select_option("metadata")
    assert page.evaluate(shown) == 1
    bar.get_by_label("Search cells").fill("gradient")
    assert page.evaluate(shown) == 0
    bar.get_by_label("Lane").select_option("")
    assert page.evaluate(shown) == 1  # the finding's text names it
    page.evaluate("(id) => { location.hash = id; }", page.locator("#evidence .fold").first.get_attribute("id"))
    page.locator("#evidence .fold").first.wait_for()  # a link to a hidden cell shows all again
    assert bar.locator("output").inner_text() == "13 cells"
    assert view.complaints == []
    view.page.context.close()


def test_tables_are_sorted_by_value(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["sample"])
    column = "(name) => [...document.querySelectorAll('#cells tbody tr')].map((row) => row.cells[name].textContent)"
    ranks = view.page.locator("#cells th").get_by_role("button", name="ranks")
    for down in (False, True):
        ranks.click()
        numbers = [int(text) for text in view.page.evaluate(column, 5)]
        assert numbers == sorted(numbers, reverse=down) and len(set(numbers)) > 3
    view.page.locator("#cells th").get_by_role("button", name="outcome").click()
    outcomes = [text.split()[1] for text in view.page.evaluate(column, 1)]
    assert outcomes[0] != outcomes[-1] and [outcomes.count(word) for word in ("pass", "fail")] == [6, 2]
    view.page.context.close()


def test_without_scripts_there_is_no_filter(browser: Browser, files: dict[str, Path]) -> None:
    view = open_view(browser, files["sample"], java_script_enabled=False)
    assert view.page.locator("button, input, select").count() == 0
    view.page.context.close()


@pytest.mark.parametrize("scheme, width", VIEWS)
def test_a_cell_that_is_compared_in_part_pushes_no_column_out_of_sight(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    report = sample_report()
    why = "compared with nothing, since the control has other rows: gradients, gradient norm, first update, later steps"
    weight = replace(report.cells[1].evidence, not_compared=f"{why}; the gradient norm is compared to 25%")
    cells = [replace(cell, evidence=weight) for cell in report.cells]
    (tmp_path / "report.html").write_text(render_html(replace(report, cells=cells)), encoding="utf-8")
    view = open_view(browser, tmp_path / "report.html", scheme, width)
    boxes = ["#cells .scroll", "#provenance .scroll", "#rejected .scroll", "nav .wrap"]
    boxes += ["#throughput .scroll"] if width < 640 else []  # ten columns, which a wide window scrolls
    assert view.page.evaluate(CUT_OFF, boxes) == []
    assert view.page.evaluate(LOW_CONTRAST)["low"] == []
    view.page.context.close()


@pytest.mark.parametrize("name", ["sample", "big"])
def test_a_narrow_window_shows_the_column_under_test(browser: Browser, files: dict[str, Path], name: str) -> None:
    view = open_view(browser, files[name], width=390)
    for box in (
        view.page.locator("#grid tbody tr").first.locator("td").first,
        view.page.locator(".ranks td.s-missing").first,
    ):
        place = box.bounding_box()
        assert place is not None and place["x"] >= 0 and place["x"] + place["width"] <= 390
    view.page.context.close()


@pytest.mark.parametrize("scheme, width", VIEWS)
def test_a_search_of_a_large_report_leads_to_the_page_of_the_cell(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    report = large_report()
    for name, text in render_pages(report):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    view = open_view(browser, tmp_path / "report.html", scheme, width)
    page = view.page
    assert page.locator(".filter output").inner_text() == f"{len(report.cells)} cells"
    assert view.overflow() <= 0 and page.evaluate(LOW_CONTRAST)["low"] == []
    page.locator(".filter").get_by_label("Outcome").select_option("PASS")
    assert page.locator("#found tbody tr").count() == 100
    page.locator(".filter").get_by_label("Search cells").fill(report.cells[-1].id)
    assert page.locator("#found tbody tr").count() == 1
    page.locator("#found a").click()
    page.locator("details:target[open]").wait_for()
    assert view.overflow() <= 0 and page.evaluate(LOW_CONTRAST)["low"] == []
    page.get_by_text("report of the whole run").click()
    assert page.locator("#cells tbody a").last.get_attribute("href") == "report-pages/003.html"
    assert view.complaints == []
    page.context.close()
