"""The pictures of the README are small, show the example report, need no network and name nothing of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import load_script

MAX_BYTES = 220_000


@pytest.fixture(scope="module")
def pictures(root: Path) -> ModuleType:
    return load_script(root / "scripts" / "pictures.py")


def test_pictures_are_small_and_shown_on_a_page(root: Path) -> None:
    shown = (root / "README.md").read_text(encoding="utf-8")
    shown += "".join(page.read_text(encoding="utf-8") for page in (root / "docs").glob("*.md"))
    files = sorted(file for file in (root / "docs" / "pictures").iterdir() if file.is_file())  # a folder: the gallery
    assert [file.name for file in files] == ["report-dark.png", "report-light.png", "scale.svg", "terminal.svg"]
    assert [file.name for file in files if file.stat().st_size > MAX_BYTES] == []
    assert [file.name for file in files if f"pictures/{file.name}" not in shown] == []


def test_the_example_is_the_run_of_the_pictures(root: Path, pictures: ModuleType) -> None:
    report = json.loads((pictures.EXAMPLE / "report.json").read_text(encoding="utf-8"))
    assert report["matrix_file"] == pictures.MATRIX
    assert (root / pictures.MATRIX).is_file()
    assert report["counts"]["FAIL"] == 1
    assert report["run_id"] in (pictures.PICTURES / "terminal.svg").read_text(encoding="utf-8")
    known = [finding["known"] for cell in report["cells"] for finding in cell["findings"] if finding["known"]]
    assert any("issue 4092" in text for text in known)


def test_a_terminal_is_drawn_in_colour_without_a_font_from_the_network(pictures: ModuleType) -> None:
    drawn = pictures.terminal("harness run m.yaml", "\x1b[1;31mFAIL\x1b[0m tp2-pp4")
    assert drawn.startswith("<svg")
    assert "tp2-pp4" in drawn
    assert "m.yaml" in drawn
    assert "@font-face" not in drawn
    assert "url(http" not in drawn


def test_folders_of_the_machine_are_left_out(pictures: ModuleType) -> None:
    run = Path("/scratch/runs/one")
    text = f'"{pictures.ROOT}/.venv/bin/python" {run}/report.md {Path.home()}/.cache/x'
    assert pictures.without_machine(text, run) == '".venv/bin/python" reports/one/report.md ~/.cache/x'
