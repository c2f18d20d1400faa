"""report.md: a summary that fits a CI job page (GitHub allows 1 MiB per step summary)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.core.outcomes import Outcome
from harness.core.run.report import Report, ReportCell
from harness.core.text import counted, markdown_code, markdown_text
from harness.reporting.summaries import canary_counts, gpu_texts, peak_texts, share_text

MAX_BYTES = 1024 * 1024 - 4096
_TEXT_LENGTH = 600
_CODE_LENGTH = 4000


def render_markdown(report: Report, *, most_bytes: int = MAX_BYTES) -> str:
    """Return the summary: verdict, changes, failures by fault class, others, the grid, times, evidence, noise."""
    lines = [*_head(report), *_since(report), *_failures(report), *_others(report), *_partial(report), *_grid(report)]
    lines += [
        *_origin(report),
        *_rejected(report),
        *_times(report),
        *_evidence(report),
        *_canaries(report),
        *_noise(report),
    ]
    return cut(lines, most_bytes)


def cut(lines: list[str], most_bytes: int, whole: str = "report.json") -> str:
    """Join lines to at most `most_bytes`; a note counts the omitted lines and names what has the `whole`."""
    used = 0
    kept: list[str] = []
    for line in lines:
        used += len(line.encode()) + 1
        if used > most_bytes:
            kept += ["", f"Truncated: {len(lines) - len(kept)} more lines. {whole} has everything."]
            break
        kept.append(line)
    return "\n".join(kept) + "\n"


def text(value: object) -> str:
    """Return one line of plain text, clipped to a readable length."""
    return markdown_text(str(value), _TEXT_LENGTH)


def bold(value: object) -> str:
    """Return the text in bold; a dash if it is empty, since `****` renders as a horizontal rule."""
    return f"**{text(value) or '-'}**"


def code(value: object) -> str:
    """Return a code span."""
    return markdown_code(str(value), _CODE_LENGTH)


def _head(report: Report) -> Iterator[str]:
    yield f"# {text(report.headline)}: {text(report.matrix)}"
    yield ""
    wall = report.timing.get("wall_s")
    taken = f" in {wall:.1f} s" if wall is not None else ""
    yield f"{report.counts_text or 'no cells'}{taken}. Run {code(report.run_id)}."
    yield ""
    for problem in [*report.problems, *filter(None, [report.faults_text])]:
        yield from (f"**{text(problem)}**", "")
    if report.selection:
        yield from (f"Selected, {text(report.selection.text)}; {report.selection.left_out} cells left out.", "")


def _origin(report: Report) -> Iterator[str]:
    origin = report.origin
    if origin is None:
        return
    yield from ("## Your run", "", f"From {text(origin.source)}: {origin.counts_text}.", "")
    yield from (f"- kept: {', '.join(map(code, origin.kept))}", f"- shrunk: {', '.join(map(code, origin.shrunk))}")
    for reason, settings in origin.not_tested.items():
        yield f"- not tested: {', '.join(map(code, settings))}: {text(reason)}"
    yield ""


def _since(report: Report) -> Iterator[str]:
    if report.since is None:
        return
    yield from ("## Since the previous run", "", text(report.since.text), "")
    for cell in report.since.cells:
        yield f"- {bold(cell.id)}: {text(cell.change)}: {text(cell.text)}"
    yield from ("",) if report.since.cells else ()


def _failures(report: Report) -> Iterator[str]:
    groups: dict[str, list[ReportCell]] = {}
    for cell in report.cells:
        if cell.outcome is Outcome.FAIL:
            lead = cell.first.fault_class if cell.first else None
            groups.setdefault(lead or "unclassified", []).append(cell)
    if not groups:
        return
    yield "## Failures by probable fault class"
    yield ""
    for name, cells in groups.items():
        yield f"### {text(name)} ({counted(len(cells), 'cell')})"
        yield ""
        for cell in cells:
            yield from _failed_cell(cell)
        yield ""


def _failed_cell(cell: ReportCell) -> Iterator[str]:
    errors = cell.errors
    yield f"- {bold(cell.id)}"
    for finding in errors[:1]:
        yield f"  - first: {finding.lane.value}, {text(finding.check)}: {text(finding.message)}"
    for known in dict.fromkeys(finding.known for finding in errors if finding.known):
        yield f"  - known: {text(known)}"
    if cell.scope:
        yield f"  - {text(cell.scope)}"
    for word, follow in (("consequences", True), ("also failed", False)):
        names = [
            f"{consequence.lane.value} {consequence.check}"
            for consequence in errors[1:]
            if bool(consequence.follows_from) is follow
        ]
        if names:
            yield f"  - {word}: {text(', '.join(dict.fromkeys(names)))}"
    if cell.reason:
        yield f"  - {text(cell.reason)}"
    yield from _failure_class(cell)
    if cell.failure is not None:
        yield f"  - log: {code(cell.failure.log)}"
    yield f"  - reproduce: {code(cell.reproduce)}"


def _failure_class(cell: ReportCell) -> Iterator[str]:
    failure = cell.failure
    if failure is not None and failure.failure_class:
        kind = f"{failure.domain}, {failure.role}"
        if failure.follows_from:
            yield f"  - failure: {text(failure.title)}, a consequence of {text(failure.follows_from)}"
            return
        yield f"  - failure: {text(failure.title)} ({text(kind)}). {text(failure.advice)}"


def _others(report: Report) -> Iterator[str]:
    titles = {
        Outcome.ERROR: "Undecided",
        Outcome.NOT_RUN: "Not run",
        Outcome.XFAIL: "Failed as expected",
        Outcome.XPASS: "Passed against expectation",
        Outcome.FLAKY: "Passed only on a retry",
    }
    for outcome, title in titles.items():
        cells = [cell for cell in report.cells if cell.outcome is outcome]
        if cells:
            yield from ("## " + title, "")
            for cell in cells:
                yield f"- {bold(cell.id)}: {text(cell.reason)}"
                yield from _failure_class(cell)
                if cell.failure is not None and cell.failure.domain == "harness":
                    yield f"  - log to report: {code(cell.failure.log)}"
            yield ""


def _partial(report: Report) -> Iterator[str]:
    cells = [cell for cell in report.cells if cell.partial]
    if cells:
        yield from ("## Judged in part", "")
        yield from (f"- {bold(cell.id)}: {cell.outcome.value}, {text(cell.partial)}" for cell in cells)
        yield ""


def _grid(report: Report) -> Iterator[str]:
    """Yield the grid. Rows: the axes that vary, without packing; columns: packing."""
    members = [(judged.axes, judged.outcome.value) for judged in report.cells]
    members += [(rejected.axes, Outcome.REJECTED.value) for rejected in report.rejected]
    if not members:
        return
    columns = list(dict.fromkeys(str(axes.get("packing", "")) for axes, _ in members))
    rows: dict[str, dict[str, list[str]]] = {}
    varying = _varying([axes for axes, _ in members])
    for axes, outcome in members:
        name = " ".join(f"{axis}={axes[axis]}" for axis in varying if axis in axes) or "all"
        cell = rows.setdefault(name, {}).setdefault(str(axes.get("packing", "")), [])
        if outcome not in cell:
            cell.append(outcome)
    yield from ("## Layout by packing", "")
    yield f"| layout | {' | '.join(text(column) for column in columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for name, cells in rows.items():
        yield f"| {text(name)} | {' | '.join(', '.join(cells.get(column, ['-'])) for column in columns)} |"
    yield ""


def _times(report: Report) -> Iterator[str]:
    """Yield rates of every timed cell, and the comparisons of the timing legs."""
    cells = [cell for cell in report.cells if cell.throughput.step_p50_s is not None]
    if not cells:
        return
    yield from ("",) if report.rejected else ()
    yield from ("## Throughput", "", "Medians per rank. Only the ratios below are judged.", "")
    yield "| cell | real tokens/s | slots/s | real / slots | TFLOP/s | MFU | step p50 | step p95 | peak memory |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for cell in cells:
        speed = cell.throughput
        numbers = (
            _number(speed.real_tokens_per_s),
            _number(speed.slots_per_s),
            _number(speed.efficiency),
            _number(speed.tflops_per_s),
            share_text(speed.mfu),
            _number(speed.step_p50_s, " ms", 1000),
            _number(speed.step_p95_s, " ms", 1000),
            _number(speed.peak_memory_bytes, " MiB", 2**-20),
        )
        yield f"| {text(cell.id)} | {' | '.join(numbers)} |"
    peaks = peak_texts(report)
    yield from ("", *(text(line) for line in peaks)) if peaks else ()
    loads = [(cell, load) for cell in cells for load in cell.throughput.loads]
    if loads:
        yield from ("", "| cell | pass of the timing leg | median | real tokens/s | slots/s | TFLOP/s | MFU |")
        yield "|---|---|---|---|---|---|---|"
    for cell, load in loads:
        name = f"{load.load}, {load.documents} documents" if load.documents else load.load
        rates = (load.real_tokens_per_s, load.slots_per_s, load.tflops_per_s)
        shown = [_number(load.seconds, " ms", 1000), *map(_number, rates), share_text(load.mfu)]
        yield f"| {text(cell.id)} | {text(name)} | {' | '.join(shown)} |"
    yield from ("", *(f"- {text(line)}" for line in gpu_texts(report))) if gpu_texts(report) else ()
    ratios = [(cell, ratio) for cell in cells for ratio in cell.throughput.ratios]
    yield from ("",) if ratios else ()
    for cell, ratio in ratios:
        yield f"- {bold(cell.id)}: {text(ratio.what)}: {text(ratio.text)}"


def _evidence(report: Report) -> Iterator[str]:
    """Yield the evidence behind every verdict."""
    cells = [cell for cell in report.cells if cell.evidence.records]
    if not cells:
        return
    yield from ("", "## Evidence", "", "| cell | verdict | rests on | would have failed |", "|---|---|---|---|")
    for cell in cells:
        verdict = f"{cell.outcome.value}, in part" if cell.partial else cell.outcome.value
        yield f"| {text(cell.id)} | {verdict} | {text(cell.evidence.text)} | {text(cell.evidence.smallest_text)} |"
    unread = Counter(cell.evidence.not_read_text for cell in cells if cell.evidence.not_read)
    yield from ("",) if unread else ()
    for names, count in sorted(unread.items()):
        yield f"- not read in {counted(count, 'cell')}: {text(names)}"


def _canaries(report: Report) -> Iterator[str]:
    counts = canary_counts(report)
    if counts:
        yield from ("", "## Canaries", "", "| canary | result | cells |", "|---|---|---|")
    for count in counts:
        yield f"| {text(count.canary)} | {text(count.what)} | {count.cells} |"


def _noise(report: Report) -> Iterator[str]:
    """Yield the noise floors that controls measured; those of fp32 are fixed."""
    measured = [(cell, name, floor) for cell, floors in report.noise.items() for name, floor in floors.items()]
    if measured:
        yield from (
            "",
            "## Noise floor",
            "",
            "| control | quantity | relative difference | varied |",
            "|---|---|---|---|",
        )
    for cell, name, floor in measured:
        yield f"| {text(cell)} | {text(name)} | {floor.value:.3g} | {text(floor.by)} |"


def _number(value: float | None, unit: str = "", factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.4g}{unit}"


def _varying(axes: list[dict[str, Any]]) -> list[str]:
    """Return the axes with more than one value, without packing; in matrix order."""
    names = dict.fromkeys(name for cell_axes in axes for name in cell_axes if name != "packing")
    return [name for name in names if len({str(cell_axes.get(name)) for cell_axes in axes}) > 1]


def _rejected(report: Report) -> Iterator[str]:
    if not report.rejected:
        return
    yield from ("## Rejected", "")
    for rejected in report.rejected:
        yield f"- {bold(rejected.id)}: {code(rejected.rule)}: {text(rejected.reason)}"
