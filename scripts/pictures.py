"""Makes the pictures of the README and the example report from one real run: `python scripts/pictures.py`.

It runs matrices/issue_4092.yaml, in which a released bug makes one cell fail, or takes that run's directory as its
argument. It needs Chromium on PATH (`make test` installs one) and writes docs/pictures and reports/example.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from harness.infra.html.report import render_html
from harness.judge.report.render_json import read_report

ROOT = Path(__file__).resolve().parent.parent
MATRIX = "matrices/issue_4092.yaml"
PICTURES, EXAMPLE = ROOT / "docs" / "pictures", ROOT / "reports" / "example"
REPORTS = ("report.html", "report.md", "report.json", "junit.xml")
COLUMNS = 112  # of the terminal
WIDTH, MARGIN = 1000, 24  # of the screenshot, px
COLOURS = 128  # of the screenshot: enough for a page, at a third of the bytes
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # needs a network, which an embedded picture does not get


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(arguments[0]).resolve() if arguments else new_run(Path(folder))
        shown = harness("report", str(run), "--no-history")  # what the run printed, without progress
        EXAMPLE.mkdir(exist_ok=True)
        # Without the run directory, to whose files the page would link.
        (run / "report.html").write_text(render_html(read_report((run / "report.json").read_text(encoding="utf-8"))))
        for name in REPORTS:
            text = (run / name).read_text(encoding="utf-8")
            (EXAMPLE / name).write_text(without_machine(text, run), encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / "terminal.svg").write_text(terminal(without_machine(shown, run)), encoding="utf-8")
    screenshots(EXAMPLE / "report.html")


def new_run(folder: Path) -> Path:
    """Run the matrix; returns the run directory."""
    harness("run", MATRIX, "--run-dir", str(folder), "--no-history")
    (run,) = (path for path in folder.iterdir() if path.is_dir())
    return run


def harness(*arguments: str) -> str:
    """Output of a command on a terminal; it must end with a failed check."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    command = [str(Path(sys.executable).with_name("harness")), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != 1:
        raise SystemExit(f"harness {' '.join(arguments)} ended with {done.returncode}, not with a failed check")
    return done.stdout


def without_machine(text: str, run: Path) -> str:
    """The text without the folders of this machine."""
    for folder, name in ((run.parent, "reports"), (ROOT, "."), (Path.home(), "~")):
        text = text.replace(f"{folder}/", f"{name}/")
    return text.replace(" ./.venv", " .venv").replace('"./.venv', '".venv')


def terminal(output: str) -> str:
    """The output as an SVG picture of a terminal."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ ", style="dim").append(f"harness run {MATRIX}", style="bold not dim"))
    console.print(Text.from_ansi(output))
    return _WEB_FONT.sub("", console.export_svg(title="packing-harness", theme=MONOKAI, unique_id="terminal"))


def screenshots(page: Path) -> None:
    """The report down to the end of its first failure, light and dark."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("no Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in SCHEMES:
            tab = browser.new_page(viewport={"width": WIDTH, "height": WIDTH}, color_scheme=scheme)
            tab.goto(page.as_uri())
            failure = tab.locator("#failures details.cell").first.bounding_box()
            assert failure is not None
            height = round(failure["y"] + failure["height"]) + MARGIN
            tab.set_viewport_size({"width": WIDTH, "height": height})
            picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(COLOURS)
            picture.save(PICTURES / f"report-{scheme}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
