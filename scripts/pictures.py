"""Makes the pictures of the README and the example report from one real run: `python scripts/pictures.py`.

It runs matrices/issue_4092.yaml, in which a released bug makes one cell fail, or takes that run's directory as its
argument. It needs Chromium on PATH (`make test` installs one) and writes docs/pictures and reports/example.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from drawing import ROOT, SCHEMES, chromium, harness, only_folder, screenshot, terminal, without_machine

from harness.reporting.html.report import render_html
from harness.reporting.render_json import read_report

MATRIX = "matrices/issue_4092.yaml"
PICTURES, EXAMPLE = ROOT / "docs" / "pictures", ROOT / "reports" / "example"
REPORTS = ("report.html", "report.md", "report.json", "junit.xml")
WIDTH = 1000  # of the screenshot, px


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(arguments[0]).resolve() if arguments else new_run(Path(folder))
        shown = harness("report", str(run), "--no-history", code=1)  # what the run printed, without progress
        EXAMPLE.mkdir(exist_ok=True)
        # Without the run directory, to whose files the page would link.
        (run / "report.html").write_text(render_html(read_report((run / "report.json").read_text(encoding="utf-8"))))
        for name in REPORTS:
            text = (run / name).read_text(encoding="utf-8")
            (EXAMPLE / name).write_text(without_machine(text, run), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    drawn = terminal(f"harness run {MATRIX}", without_machine(shown, run))
    (PICTURES / "terminal.svg").write_text(drawn, encoding="utf-8")
    with chromium() as browser:
        for scheme in SCHEMES:
            picture, end = PICTURES / f"report-{scheme}.png", "#failures details.cell"
            screenshot(browser, EXAMPLE / "report.html", picture, width=WIDTH, scheme=scheme, until=end)


def new_run(folder: Path) -> Path:
    """Run the matrix; returns the run directory."""
    harness("run", MATRIX, "--run-dir", str(folder), "--no-history", code=1)
    return only_folder(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
