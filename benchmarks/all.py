"""Runs every benchmark and writes one page of their figures: machine, load, medians, limits, rivals of the same run.

    python benchmarks/all.py [--only smoke plan ...] [--clone ../Megatron-LM] [--smallest] [--page FILE]

They run one after the other, an hour and a half on two quiet cores; the soaks, an hour each, only by --only. What a
benchmark needs and this machine lacks is named in the page in its place. A page that exists keeps the figures of the
benchmarks that do not run. With `--smallest` each only shows that it measures, in a few minutes, and no page is written
unless `--page` names one. The exit code is 1 when a benchmark fails or misses a limit.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from figures import ROOT, Figure, read, shown

PAGE = ROOT / "docs" / "generated" / "benchmarks.md"
HOUR = ("--minutes", "60", "--faults", "60")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A script of this folder."""

    name: str
    arguments: tuple[str, ...] = ()  # besides those of its smallest size
    always: tuple[str, ...] = ()  # of every size
    needs: str = ""  # what not every machine has, besides torch and Megatron
    clone: str = ""  # the option that takes a clone of Megatron-LM, where there is one
    file: str = ""  # of the script, if not bench_NAME.py
    asked: bool = False  # runs only by --only

    @property
    def script(self) -> str:
        return self.file or f"bench_{self.name}.py"


BENCHMARKS = (
    Benchmark(name="cli"),
    Benchmark(name="plan", arguments=("--covering", "2")),
    Benchmark(name="start"),
    Benchmark(name="smoke"),
    Benchmark(
        name="thousand",
        arguments=("--matrix", str(ROOT / "benchmarks" / "thousand.yaml"), "--runs", "1", "--rival-cells", "0"),
        file="bench_smoke.py",
    ),
    Benchmark(name="legs", arguments=("--matrix", str(ROOT / "matrices" / "triage.yaml"))),
    Benchmark(name="judge"),
    Benchmark(name="history"),
    Benchmark(name="scale", arguments=("--curve", str(ROOT / "docs" / "pictures" / "scale.svg"))),
    Benchmark(name="overhead"),
    Benchmark(name="repeats", arguments=("--repeats", "3")),
    Benchmark(name="soak", arguments=HOUR, asked=True),
    Benchmark(
        name="soak_slurm",
        arguments=(*HOUR, "--matrix", str(ROOT / "benchmarks" / "soak_slurm.yaml")),
        always=("--on", "slurm"),
        needs="slurm",
        file="bench_soak.py",
        asked=True,
    ),
    Benchmark(name="stacks", needs="packages"),
    Benchmark(name="calm", arguments=("--repeats", "3"), needs="packages"),
    Benchmark(name="trainer", needs="packages", clone="--clone"),
    Benchmark(name="bisect", arguments=("--commits", "100"), clone="--repo"),
    Benchmark(name="slurm", needs="slurm"),
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A benchmark that ran, or why it did not."""

    benchmark: Benchmark
    command: str
    figures: Sequence[Figure] = ()
    load: float = 0.0  # of the machine, at its start
    seconds: float = 0.0
    code: int = 0
    why: str = ""  # not run


def lacking(benchmark: Benchmark) -> str:
    """Why a benchmark cannot run here; empty if it can."""
    if benchmark.needs == "slurm":
        sys.path.insert(0, str(ROOT))
        from tests.slurm.machine import missing

        return missing() or ""
    return ""


def run(benchmark: Benchmark, clone: Path | None, *, smallest: bool) -> Ran:
    """Run a benchmark in a fresh process; what it prints is shown."""
    given = [benchmark.clone, str(clone)] if clone and benchmark.clone else []
    words = [*given, *benchmark.always, *(("--smallest",) if smallest else benchmark.arguments)]
    names = ("CLONE" if word == str(clone) else word.replace(f"{ROOT}/", "") for word in words)
    shown = " ".join(["python", f"benchmarks/{benchmark.script}", *names])
    if why := lacking(benchmark):
        return Ran(benchmark=benchmark, command=shown, why=why)
    print(f"== {shown}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file, load, begin = Path(folder) / "figures.json", os.getloadavg()[0], time.monotonic()
        command = [sys.executable, str(ROOT / "benchmarks" / benchmark.script), *words, "--figures", str(file)]
        code = subprocess.run(command, cwd=folder).returncode
        found = read(file) if file.exists() else []
    seconds = time.monotonic() - begin
    return Ran(benchmark=benchmark, command=shown, figures=found, load=load, seconds=seconds, code=code)


def where() -> str:
    """What figures were measured with, and when."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    software = ", ".join(f"{name} {version(name)}" for name in ("torch", "megatron-core"))
    return (
        f"harness at {commit}, {date.today().isoformat()}; {model}, {len(os.sched_getaffinity(0))} cores, "
        f"{memory:.0f} GiB; Python {platform.python_version()}, {software}"
    )


def row(ran: Ran, figure: Figure) -> str:
    few = len(figure.values) == 1
    spread = "" if few else f"{shown(min(figure.values))} to {shown(max(figure.values))}"
    limit = "" if figure.limit is None else f"{figure.limit:g}{'' if figure.ok else ', missed'}"
    note = figure.note + ("; the largest value" if figure.worst and not few else "")
    cells = (figure.name, f"{shown(figure.measured)} {figure.unit}".strip(), spread, str(len(figure.values)), limit)
    return f"| {' | '.join((*cells, f'{ran.load:.1f}', note.strip('; ')))} |"


def page(rans: Sequence[Ran], kept: str = "") -> str:
    """The page, in Markdown. `kept`: of an earlier page, for sections of benchmarks that did not run now."""
    lines = [
        "# Benchmarks",
        "",
        "Written by `python benchmarks/all.py`; do not edit. Ratios",
        "compare values of one run. Times depend on the machine and on what else it did: the load at the start of a",
        "benchmark counts processes that run or wait for a core.",
    ]
    for ran in rans:
        before = section(kept, ran.benchmark.name)
        lines += ["", f"## {ran.benchmark.name}", ""]
        if ran.figures:
            lines += [f"`{ran.command}`, {ran.seconds:.0f} s; {where()}:", ""]
            lines += ["| figure | median | from, to | values | limit | load | note |", "|---|---|---|---|---|---|---|"]
            lines += [row(ran, figure) for figure in ran.figures]
        elif ran.why and before:
            lines.append(before)
        else:
            lines.append(f"`{ran.command}`: not measured: {ran.why or f'exit code {ran.code}'}.")
    return "\n".join(lines) + "\n"


def section(text: str, name: str) -> str:
    """What a page says about a benchmark; empty if nothing."""
    return text.partition(f"\n## {name}\n")[2].partition("\n## ")[0].strip()


def main() -> int:
    names = [benchmark.name for benchmark in BENCHMARKS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--clone", type=Path, help="a clone of Megatron-LM: trainer and bisect use its code")
    parser.add_argument("--smallest", action="store_true", help="only show that each measures")
    parser.add_argument("--page", type=Path, help="where to write the page (docs/generated/benchmarks.md)")
    arguments = parser.parse_args()
    clone = arguments.clone.resolve() if arguments.clone else None
    file = arguments.page or (None if arguments.smallest else PAGE)
    rans = {
        benchmark.name: Ran(benchmark=benchmark, command=f"python benchmarks/{benchmark.script}", why="left out")
        for benchmark in BENCHMARKS
    }
    kept = file.read_text(encoding="utf-8") if file and file.exists() else ""
    for benchmark in BENCHMARKS:
        if benchmark.name in arguments.only if arguments.only else not benchmark.asked:
            rans[benchmark.name] = run(benchmark, clone, smallest=arguments.smallest)
            if file:  # after each, so that an interrupted run leaves what it has
                file.write_text(page([*rans.values()], kept), encoding="utf-8")
    for ran in rans.values():
        ended = ran.why or ("ok" if ran.code == 0 else f"exit code {ran.code}")
        print(f"{ran.benchmark.name:<10} {ended}")
    return int(any(ran.code for ran in rans.values()))


if __name__ == "__main__":
    sys.exit(main())
