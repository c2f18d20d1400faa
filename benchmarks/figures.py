"""What a benchmark measures: values with their limit, printed, and collected by all.py."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SMALLEST = ROOT / "benchmarks" / "smallest.yaml"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Measured values of one quantity. The limit is for their median, or with `worst` for the largest."""

    name: str
    values: Sequence[float]
    unit: str = "s"
    limit: float | None = None  # the largest allowed value; None: only shown
    worst: bool = False
    note: str = ""

    @property
    def measured(self) -> float:
        return max(self.values) if self.worst else statistics.median(self.values)

    @property
    def ok(self) -> bool:
        return self.limit is None or self.measured <= self.limit

    def line(self) -> str:
        how = ("largest" if self.worst else "median") + f" of {len(self.values)}"
        spread = (
            f"{how}, {shown(min(self.values))} to {shown(max(self.values))}" if len(self.values) > 1 else "one value"
        )
        held = "" if self.limit is None else f"; limit {self.limit:g}: {'ok' if self.ok else 'MISSED'}"
        note = f"; {self.note}" if self.note else ""
        return f"{self.name}: {shown(self.measured)} {self.unit}".rstrip() + f" ({spread}){held}{note}"


def shown(value: float) -> str:
    """Three digits, and the whole digits of a large number, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 1000 and math.isfinite(value) else f"{value:.3g}"


def exit_code(figures: Sequence[Figure]) -> int:
    """1 when a limit is missed."""
    return int(not all(figure.ok for figure in figures))


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every benchmark."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--smallest", action="store_true", help="only show that it measures: few, small, without limits")
    made.add_argument("--figures", type=Path, metavar="FILE", help="also write the figures to this file, as JSON")
    return made


def finished(figures: Sequence[Figure], options: argparse.Namespace) -> int:
    """Print and write the figures; the exit code of the benchmark. SystemExit if nothing was measured."""
    missing = [figure.name for figure in figures if not figure.values]
    if missing or not any(value > 0 for figure in figures for value in figure.values):
        raise SystemExit(f"nothing was measured: {', '.join(missing) or 'no figure above 0'}")
    for figure in figures:
        print(figure.line(), flush=True)
    if options.figures:
        options.figures.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    return 0 if options.smallest else exit_code(figures)


def read(file: Path) -> list[Figure]:
    """The figures that a benchmark wrote; ValueError for a value that is no number."""
    found = [Figure(**values) for values in json.loads(file.read_text())]
    if odd := [figure.name for figure in found if any(math.isnan(value) for value in figure.values)]:
        raise ValueError(f"not a number: {', '.join(odd)}")
    return found
