"""Makes the pictures of docs/gallery.md from real runs: `python scripts/gallery.py [FOLDER]`.

The runs go to FOLDER, where those that are already there are kept, else to a temporary folder. It needs Chromium on
PATH (`make test` installs one) and builds an environment per release once.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drawing import ROOT, SCHEMES, chromium, harness, only_folder, screenshot, terminal, without_machine
from playwright.sync_api import Browser

MATRIX = "docs/examples/gallery.yaml"
PICTURES = ROOT / "docs" / "pictures" / "gallery"
WIDTHS = {"wide": 1000, "narrow": 390}  # of screenshots, px
OLD = "stacks.core=core-0.17.1"  # its sft reader leaves ranks of middle stages without metadata
MIDDLE_STAGES = "tp2-pp4-cp1-sft-*"
BISECT = (
    *("bisect", MATRIX, "--only", MIDDLE_STAGES, "--package", "megatron-core", "--find", "fixed"),
    *("--good", "0.18.2", "--bad", "0.17.1", "--no-shrink"),
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of the matrix; those of one folder are in its history."""

    name: str
    options: Sequence[str]
    code: int
    folder: str = "alone"


RUNS = (
    Run(name="before", options=("-k", "sft and tp1 and cp1", "--set", OLD), code=0, folder="releases"),
    Run(name="metadata", options=("-k", "sft and not cp2", "--set", OLD), code=1, folder="releases"),
    Run(name="fixed", options=("-k", "sft and not cp2", "--set", "stacks.core=core-0.18.2"), code=0, folder="releases"),
    Run(name="green", options=("-k", "not label_smoothing"), code=0, folder="releases"),
    Run(name="numerics", options=("-k", "label_smoothing"), code=1),
    Run(
        name="throughput",
        options=("-k", "tp1 and cp1 and reference", "--set", "checks.throughput.segment_slope=true"),
        code=1,
    ),
    Run(name="fault", options=("-k", "tp1 and cp2", "--fault", "attention-ignores-documents"), code=1),
)


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A picture of a page, down to the end of the first element that `until` selects."""

    name: str
    page: str  # in the folder of the runs
    until: str


def main(arguments: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments[0] if arguments else temporary).resolve()
        made = {run.name: folder / run.folder / name for run in RUNS for name in [run_once(run, folder)]}
        harness("compare", str(made["metadata"]), str(made["fixed"]), code=0)
        harness("index", str(folder / "releases"), code=0)
        bisection = bisect_once(folder)
        shutil.rmtree(PICTURES, ignore_errors=True)
        PICTURES.mkdir(parents=True)
        drawn = terminal(f"harness {' '.join(BISECT)}", bisection)
        (PICTURES / "bisection.svg").write_text(drawn, encoding="utf-8")
        with chromium() as browser:
            for shot in shots(made, folder):
                take(browser, shot)


def run_once(run: Run, folder: Path) -> str:
    """The run's id; it is run unless the folder has it."""
    note = folder / f"{run.name}.txt"
    if not note.exists():
        parent = folder / run.folder
        before = set(parent.glob("*/"))
        harness("run", MATRIX, *run.options, "--run-dir", str(parent), code=run.code)
        (made,) = set(parent.glob("*/")) - before
        note.write_text(made.name, encoding="utf-8")
    return note.read_text(encoding="utf-8")


def bisect_once(folder: Path) -> str:
    """What the bisection printed; it is run unless the folder has it."""
    kept = folder / "bisection.txt"
    if not kept.exists():
        parent = folder / "bisections"
        said = harness(*BISECT, "--run-dir", str(parent), code=0)
        kept.write_text(without_machine(said, only_folder(parent)), encoding="utf-8")
    _, result, rest = kept.read_text(encoding="utf-8").partition("first good release")
    return f"{result}{rest}".rstrip()  # without progress


def shots(made: dict[str, Path], folder: Path) -> list[Shot]:
    ends = {"green": "#grid", "metadata": "#failures details.cell", "numerics": "#failures details.cell"}
    ends |= {"throughput": "#failures details.cell", "fault": "#failures details.cell"}
    found = [Shot(name=name, page=str(made[name] / "report.html"), until=until) for name, until in ends.items()]
    found.append(Shot(name="comparison", page=str(made["fixed"] / "compare.html"), until="#stacks"))
    found.append(Shot(name="index", page=str(folder / "releases" / "index.html"), until="#runs"))
    found.append(Shot(name="history", page=str(folder / "releases" / "history.html"), until="#trends .plots"))
    return found


def take(browser: Browser, shot: Shot) -> None:
    """Light and dark, wide and narrow."""
    for size, width in WIDTHS.items():
        for scheme in SCHEMES:
            picture = PICTURES / f"{shot.name}-{size}-{scheme}.png"
            screenshot(browser, Path(shot.page), picture, width=width, scheme=scheme, until=shot.until)


if __name__ == "__main__":
    main(sys.argv[1:])
