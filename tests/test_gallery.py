"""The gallery shows pictures that exist, all of them, of runs that the script makes."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from tests.scripts import load_script

MAX_BYTES = 3_000_000


@pytest.fixture(scope="module")
def gallery(root: Path) -> ModuleType:
    return load_script(root / "scripts" / "gallery.py")


def test_every_picture_is_shown_and_together_they_are_small(root: Path, gallery: ModuleType) -> None:
    page = (root / "docs" / "gallery.md").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|srcset)="(pictures/gallery/[^"]+)"', page)
    files = {path.relative_to(root / "docs").as_posix() for path in gallery.PICTURES.iterdir()}
    assert set(named) == files
    assert sum(path.stat().st_size for path in gallery.PICTURES.iterdir()) < MAX_BYTES
    assert all(re.search(r'alt="[^"]{20,}"', image) for image in re.findall(r"<img [^>]*>", page))


def test_every_run_is_described_by_its_options(root: Path, gallery: ModuleType) -> None:
    page = (root / "docs" / "gallery.md").read_text(encoding="utf-8")
    for run in gallery.RUNS:
        words = [f'"{word}"' if " " in word else word for word in run.options]
        assert f"harness run {gallery.MATRIX} {' '.join(words)}" in page, run.name
    assert f"harness {' '.join(gallery.BISECT)}" in page.replace("'", "")


def test_every_page_is_taken_light_and_dark_wide_and_narrow(gallery: ModuleType) -> None:
    made = {run.name: Path(run.name) for run in gallery.RUNS}
    taken = {f"{shot.name}-{size}-{scheme}.png" for shot in gallery.shots(made, Path("runs"))
             for size in ("wide", "narrow") for scheme in ("light", "dark")}  # fmt: skip
    assert taken | {"bisection.svg"} == {path.name for path in gallery.PICTURES.iterdir()}


@pytest.mark.long
@pytest.mark.train
@pytest.mark.browser
def test_the_script_runs_a_cell_and_takes_its_pictures(
    gallery: ModuleType, chromium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "PICTURES", tmp_path)
    options = ("-k", "tp1 and cp1 and reference", "--set", "matrix.stack=default", "--set", "stacks={}")
    run = gallery.Run(name="green", options=options, code=0)
    page = tmp_path / run.folder / gallery.run_once(run, tmp_path) / "report.html"
    with gallery.chromium() as browser:
        gallery.take(browser, gallery.Shot(name="green", page=str(page), until="#grid"))
    taken = sorted(tmp_path.glob("*.png"))
    assert len(taken) == 4
    widths = []
    for path in taken:
        with Image.open(path) as picture:
            widths.append(picture.width)
    assert sorted(widths) == [390, 390, 1000, 1000]
