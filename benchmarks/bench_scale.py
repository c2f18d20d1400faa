"""A simulated campaign through planner, journals, status, judge, reports and history: time, memory and files by stage.

    python benchmarks/bench_scale.py [--cells 100 1000 20000] [--keep DIR] [--curve docs/pictures/scale.svg]

Only the training is replaced: tests/judge/simulator.py makes the records of each layout, which the real writer writes
under the id of every planned cell of that layout. The plan is for a cluster of 4,096 ranks, and one of its cells takes
all of them. In every twentieth group of cells the gradient norm of one is wrong, so that reports have findings. Each
stage is a fresh process; times are of its processor, so that other load changes little. A stage is linear when a cell
of the largest campaign costs at most 1.5 times as much as one of the campaign before it. Twenty minutes on two quiet
cores. Uses about 3 GB of disk below the temporary folder until it ends.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from figures import ROOT, Figure, finished, parser
from scale_stages import STAGES, processor

SIZES = (100, 1_000, 20_000)
SMALLEST = (20, 40)
LINEAR = 1.5  # processor time per cell of the largest campaign over that of the one before
SURE_S = 5.0  # shorter stages are mostly the start of a process
PAGE_MB, OPEN_S = 5.0, 3.0
BROWSER = "/usr/bin/chromium"

Measured = dict[str, float]  # quantity -> value, of one campaign


def campaign(folder: Path, cells: int) -> Measured:
    """Run every stage on a campaign of about `cells` cells."""
    found: Measured = {}
    for stage in STAGES:
        command = [sys.executable, __file__, "--stage", stage, "--folder", str(folder), "--cells", str(cells)]
        print(f"{cells:,} cells: {stage}", flush=True)
        found |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    run = folder / "run"
    found["entries of the run directory"] = sum(len(folders) + len(files) for _, folders, files in os.walk(run))
    found["report.html, MB"] = (run / "report.html").stat().st_size / 1e6
    if Path(BROWSER).exists():
        found["opening report.html, s"] = opening(run / "report.html")
    return found


def opening(page: Path) -> float:
    """Seconds until Chromium has loaded and laid out a page; the median of three."""
    from playwright.sync_api import sync_playwright

    seconds = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for _ in range(3):
            tab = browser.new_page()
            begin = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="load", timeout=120_000)
            tab.evaluate("document.body.getBoundingClientRect().height")
            seconds.append(time.perf_counter() - begin)
            tab.close()
        browser.close()
    return sorted(seconds)[1]


def one_stage(name: str, folder: Path, cells: int) -> None:
    """In a fresh process: print its measured quantities as JSON, with time and peak memory unless it only prepares."""
    sys.path.insert(0, str(ROOT))
    stage: Callable[[Path, int], Measured] = STAGES[name]
    begin = processor()
    found = dict(stage(folder, cells))
    spent = processor() - begin
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({f"{name}, s": spent, f"{name}, MB": max(peaks)} | found))


def figures_of(sizes: Sequence[int], measured: Sequence[Measured]) -> list[Figure]:
    """For each quantity its values by size, then whether it is linear, and the limits."""
    limits = {"report.html, MB": PAGE_MB, "opening report.html, s": OPEN_S}
    found = []
    for quantity in measured[0]:
        name, _, unit = quantity.partition(", ")
        values = [one[quantity] for one in measured]
        for size, value in zip(sizes, values):
            limit = limits.get(quantity)
            found.append(Figure(name=f"{name}, {size:,} cells", values=[value], unit=unit, limit=limit))
        if unit == "s" and quantity not in limits and values[-1] > SURE_S and len(sizes) > 1:
            before, after = (value / size for value, size in [*zip(values, sizes)][-2:])
            note = f"{1000 * before:.3g} ms and {1000 * after:.3g} ms per cell"
            linear = Figure(name=f"{name}, per cell", values=[after / before], unit="times", limit=LINEAR, note=note)
            found.append(linear)
    return found


def draw(file: Path, sizes: Sequence[int], measured: Sequence[Measured]) -> None:
    """The times and the peaks of memory by number of cells, on logarithmic axes."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    mpl.rcParams |= {"svg.hashsalt": "scale", "svg.fonttype": "none"}
    figure, (times, memory) = pyplot.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    names = [quantity.removesuffix(", s") for quantity in measured[0] if quantity.endswith(", s")]
    looks = {name: {"color": f"C{number}", "marker": "os^"[number // 10]} for number, name in enumerate(names)}
    for axes, unit, label in ((times, "s", "processor time, s"), (memory, "MB", "peak memory, MB")):
        for name in names:
            if f"{name}, {unit}" in measured[0] and not name.startswith("opening"):
                axes.plot(sizes, [one[f"{name}, {unit}"] for one in measured], label=name, **looks[name])
        axes.set(xscale="log", yscale="log", xlabel="cells", ylabel=label)
        axes.grid(alpha=0.3)
    figure.legend(*times.get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.savefig(file, metadata={"Date": None, "Creator": None})


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--cells", type=int, nargs="+", default=list(SIZES))
    options.add_argument("--keep", type=Path, metavar="DIR", help="where the campaigns are left; else they are removed")
    options.add_argument("--curve", type=Path, metavar="FILE", help="draw times and memory as SVG")
    options.add_argument("--stage", help=argparse.SUPPRESS)
    options.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.stage:
        one_stage(arguments.stage, arguments.folder, arguments.cells[0])
        return 0
    sizes = SMALLEST if arguments.smallest else sorted(arguments.cells)
    measured = []
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as name:
        for size in sizes:
            folder = (arguments.keep or Path(name)).resolve() / str(size)
            folder.mkdir(parents=True)
            measured.append(campaign(folder, size))
    if arguments.curve:
        draw(arguments.curve, sizes, measured)
    return finished(figures_of(sizes, measured), arguments)


if __name__ == "__main__":
    sys.exit(main())
