"""What the scripts that make pictures share: runs of the harness, a terminal as SVG, a page in Chromium."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = 112  # of the terminal
MARGIN = 24  # below the last thing that a screenshot shows, px
COLOURS = 128  # of a screenshot: enough for a page, at a third of the bytes
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
_WEB_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # needs a network, which an embedded picture does not get


def harness(*arguments: str, code: int, cwd: Path = ROOT, columns: int = COLUMNS) -> str:
    """Output of a command on a terminal; it must end with this exit code."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm-256color"}
    command = [str(Path(sys.executable).with_name("harness")), *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode != code:
        raise SystemExit(f"harness {' '.join(arguments)} ended with {done.returncode}, not {code}:\n{done.stdout}")
    return done.stdout


def only_folder(parent: Path) -> Path:
    """The one folder in it, e.g. of a run."""
    (found,) = (path for path in parent.iterdir() if path.is_dir())
    return found


def without_machine(text: str, run: Path) -> str:
    """The text without the folders of this machine."""
    for folder, name in ((run.parent, "reports"), (ROOT, "."), (Path.home(), "~")):
        text = text.replace(f"{folder}/", f"{name}/")
    return text.replace(" ./.venv", " .venv").replace('"./.venv', '".venv')


def terminal(command: str, output: str, *, columns: int = COLUMNS) -> str:
    """A command and its output as an SVG picture of a terminal."""
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ ", style="dim").append(command, style="bold not dim"))
    console.print(Text.from_ansi(output))
    return _WEB_FONT.sub("", console.export_svg(title="packing-harness", theme=MONOKAI, unique_id="terminal"))


@contextmanager
def chromium() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        raise SystemExit("no Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def screenshot(browser: Browser, page: Path, picture: Path, *, width: int, scheme: Scheme, until: str) -> None:
    """The top of a page, down to the end of the first element that `until` selects."""
    tab: Page = browser.new_page(viewport={"width": width, "height": width}, color_scheme=scheme)
    tab.goto(page.as_uri())
    last = tab.locator(until).first.bounding_box()
    assert last is not None, f"{page} has no {until}"
    tab.set_viewport_size({"width": width, "height": round(last["y"] + last["height"]) + MARGIN})
    drawn = Image.open(io.BytesIO(tab.screenshot())).convert("RGB").quantize(COLOURS)
    drawn.save(picture, optimize=True)
    tab.close()
