"""Summarises benchmarks/gpu_check.sh from the files of its parts: summary.md, summary.json, exit code.

python benchmarks/gpu_summary.py OUT WORK

OUT has report.json, throughput.json and tests.xml, each optional; WORK has parts.tsv, facts.json and overhead.txt.
Prints summary.md. Needs only the standard library, so that it runs even where everything else failed. Exit codes are
those of the harness: 0 passed, 1 a test, check or figure failed, 3 something could not be decided.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpu_figures import Figure, figures_of

PASS, FAIL, UNDECIDED = "pass", "fail", "undecided"
EXIT_CODES = {PASS: 0, FAIL: 1, UNDECIDED: 3}
ALWAYS = ("environment", "facts", "tests", "matrix", "overhead", "throughput")
MAX_SHOWN = 20  # failures


@dataclass(frozen=True)
class Part:
    """A part of the check. `verdict`: pass | fail | undecided."""

    name: str
    verdict: str
    seconds: int
    limit_s: int
    why: str = ""  # why it did not pass


@dataclass
class Summary:
    """The contents of summary.md, and of summary.json."""

    verdict: str
    parts: list[Part]
    facts: Mapping[str, Any]
    tests: Mapping[str, int] = field(default_factory=dict)
    outcomes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # report -> outcome -> cells
    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    schema_version: int = 1


def summarise(out: Path, work: Path) -> Summary:
    """Read the files of the parts; a missing one counts as undecided."""
    reports = {
        name: json.loads((out / f"{file}.json").read_text())
        for name, file in (("matrix", "report"), ("throughput", "throughput"))
        if (out / f"{file}.json").is_file()
    }
    tests, test_failures, test_skips = read_junit(out / "tests.xml")
    parts = [part_of(row, reports) for row in rows_of(work / "parts.tsv")]
    parts += [Part(name, UNDECIDED, 0, 0, "not reached") for name in ALWAYS if name not in {one.name for one in parts}]
    facts_file = work / "facts.json"
    overhead = work / "overhead.txt"
    figures = figures_of(reports.get("throughput"), overhead.read_text() if overhead.is_file() else "")
    return Summary(
        verdict=worst([*(part.verdict for part in parts), *(figure.verdict for figure in figures)]),
        parts=parts,
        facts=json.loads(facts_file.read_text()) if facts_file.is_file() else {},
        tests=tests,
        outcomes={name: {k: n for k, n in report["counts"].items() if n} for name, report in reports.items()},
        figures=figures,
        failures=test_failures + [text for report in reports.values() for text in failures_of(report)],
        skipped=[f"{part.name}: {part.why}" for part in parts if part.verdict == UNDECIDED]
        + test_skips
        + [text for name, report in reports.items() for text in rejections_of(name, report)],
    )


def rows_of(file: Path) -> list[list[str]]:
    return [line.split("\t") for line in file.read_text().splitlines()] if file.is_file() else []


def part_of(row: Sequence[str], reports: Mapping[str, Any]) -> Part:
    """A row of parts.tsv: name, exit code or `skipped`, seconds, limit, why."""
    name, code, seconds, limit, why = row
    verdict = {"0": PASS, "1": FAIL}.get(code, UNDECIDED)
    if name in ("environment", "facts") and verdict == FAIL:
        verdict = UNDECIDED  # nothing was tested
    if reports.get(name, {}).get("verdict") == "fail":
        verdict = FAIL  # even if the part exceeded its time limit
    if verdict != PASS and not why:
        why = f"exit code {code}, see log.txt"
    return Part(name, verdict, int(seconds), int(limit), why)


def worst(verdicts: Iterable[str]) -> str:
    seen = set(verdicts)
    return next((one for one in (FAIL, UNDECIDED) if one in seen), PASS)


def read_junit(file: Path) -> tuple[dict[str, int], list[str], list[str]]:
    """Counts, failures and reasons of skips of a JUnit file; empty when the file is missing or truncated."""
    try:
        cases = list(ET.parse(file).iter("testcase"))
    except (OSError, ET.ParseError):
        return {}, [], []
    counts, failures, skips = Counter[str](), [], Counter[str]()
    for case in cases:
        ended = next((part for part in case if part.tag in ("failure", "error", "skipped")), None)
        counts["passed" if ended is None else ended.tag] += 1
        if ended is None:
            continue
        if ended.tag == "skipped":
            skips[ended.get("message", "")] += 1
        else:
            message = next(iter(ended.get("message", "").splitlines()), "")
            failures.append(f"test {case.get('classname')}::{case.get('name')}: {message}")
    return dict(counts), failures, [f"{count} tests: {why}" for why, count in skips.items()]


def failures_of(report: Mapping[str, Any]) -> list[str]:
    """A line per cell that failed or could not be decided: the reason, else its first finding."""
    lines = []
    for cell in report["cells"]:
        if cell["outcome"] in ("FAIL", "XPASS", "ERROR"):
            why = cell["reason"] or next((finding["message"] for finding in cell["findings"]), "no reason given")
            lines.append(f"{cell['outcome']} {cell['id']}: {why.splitlines()[0]}")
    return lines


def rejections_of(name: str, report: Mapping[str, Any]) -> list[str]:
    """Number of cells that each rule rejects, by rule and reason."""
    seen = Counter((item["rule"], item["reason"]) for item in report["rejected"])
    return [f"{name}: {count} cells rejected by {rule}: {reason}" for (rule, reason), count in seen.items()]


def render(summary: Summary) -> str:
    """The text of summary.md."""
    lines = [f"# GPU check: {summary.verdict}", "", "| part | verdict | seconds | limit | |", "|---|---|---|---|---|"]
    for part in summary.parts:
        lines.append(f"| {part.name} | {part.verdict} | {part.seconds} | {part.limit_s} | {_cell(part.why)} |")
    lines += ["", "## Machine", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(_shown(value))} |" for name, value in summary.facts.items()]
    lines += ["", "## Outcomes", ""]
    lines += [f"- {name}: {_counts(counts)}" for name, counts in summary.outcomes.items()]
    lines += [f"- tests: {_counts(summary.tests)}"] if summary.tests else []
    lines += ["- nothing ran"] if not summary.outcomes and not summary.tests else []
    lines += ["", "## Figures", "", "| figure | measured | limit | verdict | where |", "|---|---|---|---|---|"]
    for one in summary.figures:
        lines.append(f"| {one.name} | {_cell(one.measured)} | {one.limit} | {one.verdict} | {_cell(one.where)} |")
    for title, texts in (("Failures", summary.failures), ("Skipped, rejected and undecided", summary.skipped)):
        if texts:
            lines += ["", f"## {title}", "", *(f"- {_cell(text)}" for text in texts[:MAX_SHOWN])]
            lines += [f"- and {len(texts) - MAX_SHOWN} more"] if len(texts) > MAX_SHOWN else []
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(_shown, value)) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    return "none" if value is None else str(value)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main(out: Path, work: Path) -> int:
    summary = summarise(out, work)
    text = render(summary)
    (out / "summary.md").write_text(text)
    (out / "summary.json").write_text(json.dumps(asdict(summary), indent=1) + "\n")
    print(text, end="")
    return EXIT_CODES[summary.verdict]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
