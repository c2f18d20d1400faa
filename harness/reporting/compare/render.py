"""A comparison as text: Markdown for a CI page, styled lines for a terminal, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.core.outcomes import EXIT_FAIL, EXIT_PASS, EXIT_UNDECIDED, place_text
from harness.core.run.report import ChangeKind
from harness.core.serialization import dumps
from harness.reporting.compare.runs import REGRESSION, UNDECIDED, CellChange, Comparison, differences_text
from harness.reporting.render_markdown import MAX_BYTES, bold, code, cut, text

_STYLES = {
    ChangeKind.NEWLY_FAILING: "bold red",
    ChangeKind.UNJUDGED: "bold red",
    ChangeKind.STILL_FAILING: "red",
    ChangeKind.UNDECIDED: "yellow",
    ChangeKind.FLAKY: "yellow",
    ChangeKind.NO_LONGER_RUN: "yellow",
}
_MAX_CELLS = 12  # of one group on a terminal
Lines = Iterator[tuple[str, str]]  # text, style


def render_comparison_json(comparison: Comparison) -> str:
    """Return the comparison as JSON."""
    return dumps(comparison, indent=1) + "\n"


def counts_text(comparison: Comparison) -> str:
    """Return e.g. "1 newly failing, 2 fixed, 20 unchanged"."""
    return ", ".join(f"{count} {name}" for name, count in comparison.counts.items()) or "no cells"


def outcomes_text(cell: CellChange) -> str:
    """Return "PASS -> FAIL"; for a cell that only one run has, "PASS -> gone" or "new: PASS"."""
    if cell.before is None:
        return f"new: {cell.after}"
    return f"{cell.before} -> {cell.after or 'gone'}"


def groups(comparison: Comparison) -> dict[ChangeKind, list[CellChange]]:
    """Return changed cells without a regression, by change."""
    by_change: dict[ChangeKind, list[CellChange]] = {
        name: [] for name in ChangeKind if name is not ChangeKind.UNCHANGED
    }
    for cell in comparison.cells:
        if not cell.regressions and cell.change in by_change:
            by_change[cell.change].append(cell)
    return {name: cells for name, cells in by_change.items() if cells}


def numbers(comparison: Comparison) -> list[CellChange]:
    """Return cells whose numbers can be compared."""
    return [cell for cell in comparison.cells if cell.drifts or cell.times]


def details(cell: CellChange) -> list[str]:
    """Return details of a cell other than its outcomes, most informative first."""
    lines = [why for why in cell.regressions if why != cell.change]
    if cell.findings:
        first = cell.findings[0]
        at = f" at {place}" if (place := place_text(first.unsaid)) else ""
        more = f" (and {len(cell.findings) - 1} more)" if len(cell.findings) > 1 else ""
        lines.append(f"new: {first.lane.value}, {first.check}: {first.message}{at}{more}")
    lines += [cell.reason] if cell.reason else []
    return lines + ([f"matched {cell.matched}"] if cell.matched else [])


def render_comparison_markdown(comparison: Comparison, *, most_bytes: int = MAX_BYTES) -> str:
    """Return verdict and counts, regressions, other changes by kind, stacks, numbers."""
    before, after = comparison.before, comparison.after
    lines = [
        f"# {comparison.verdict.capitalize()}: {text(after.matrix)}",
        "",
        f"{counts_text(comparison)}. From {code(before.run_id)} to {code(after.run_id)}.",
        "",
        *(f"- {text(note)}" for note in comparison.notes),
        *([""] if comparison.notes else []),
    ]
    if comparison.regressions:
        lines += ["## Regressions", "", *_markdown_cells(comparison.regressions), ""]
    for name, cells in groups(comparison).items():
        lines += [f"## {name.capitalize()}", "", *_markdown_cells(cells), ""]
    lines += ["## Stacks", ""]
    for stack in comparison.stacks:
        lines.append(f"- {bold(stack.stack)}: {text(differences_text(stack.differences) or 'identical')}")
    lines += ["", *_markdown_numbers(numbers(comparison))]
    return cut(lines, most_bytes, whole="harness compare --json")


def _markdown_cells(cells: Sequence[CellChange]) -> Iterator[str]:
    for cell in cells:
        yield f"- {bold(cell.id)}: {outcomes_text(cell)}"
        yield from (f"  - {text(line)}" for line in details(cell))
        if cell.reproduce and cell.regressions:
            yield f"  - reproduce: {code(cell.reproduce)}"


def _markdown_numbers(cells: Sequence[CellChange]) -> Iterator[str]:
    if not cells:
        return
    yield from ("## Numbers", "", "| cell | loss | gradient norm | real tokens/s per rank |", "|---|---|---|---|")
    for cell in cells:
        moved = {drift.what: drift.brief for drift in cell.drifts}
        rates = " -> ".join("-" if rate is None else f"{rate:.4g}" for rate in cell.rates)
        row = (cell.id, moved.get("loss", "-"), moved.get("gradient norm", "-"), rates)
        yield f"| {' | '.join(text(column) for column in row)} |"
    times = [(cell, time) for cell in cells for time in cell.times]
    yield from ("",) if times else ()
    for cell, time in times:
        yield f"- {bold(cell.id)}: {text(time.text)}"


def comparison_lines(comparison: Comparison) -> Lines:
    """Yield lines for a terminal: changed cells, stack differences, drifted or slower numbers; verdict last."""
    yield f"before  {comparison.before.run_id}  {comparison.before.started}", "dim"
    yield f"after   {comparison.after.run_id}  {comparison.after.started}", "dim"
    for note in comparison.notes:
        yield f"note: {note}", "yellow"
    if comparison.regressions:
        yield from (("", ""), ("Regressions", "bold red"))
        yield from _cell_lines(comparison.regressions)
    for name, cells in groups(comparison).items():
        yield from (("", ""), (name.capitalize(), _STYLES.get(name, "bold")))
        yield from _cell_lines(cells)
    yield from (("", ""), ("Stacks", "bold"))
    for stack in comparison.stacks:
        yield f"  {stack.stack}: {differences_text(stack.differences) or 'identical'}", ""
    yield "", ""
    yield from _number_lines(numbers(comparison))
    style = {REGRESSION: "bold red", UNDECIDED: "bold yellow"}.get(comparison.verdict, "bold green")
    yield f"{comparison.verdict.upper()}: {counts_text(comparison)}; exit code {exit_code(comparison)}", style


def _cell_lines(cells: Sequence[CellChange]) -> Lines:
    for cell in cells[:_MAX_CELLS]:
        yield f"  {cell.id}  {outcomes_text(cell)}", ""
        yield from ((f"    {line}", "") for line in details(cell))
        if cell.reproduce and cell.regressions:
            yield f"    reproduce: {cell.reproduce}", "dim"
    if len(cells) > _MAX_CELLS:
        yield f"  and {len(cells) - _MAX_CELLS} more in compare.md", "dim"


def _number_lines(cells: Sequence[CellChange]) -> Lines:
    """Yield the number of equal cells, then the cells whose numbers differ."""
    if not cells:
        return
    yield "Numbers", "bold"
    equal = [cell for cell in cells if cell.drifts and all(drift.equal for drift in cell.drifts)]
    yield f"  loss and gradient norm are equal, bit for bit, in {len(equal)} of {len(cells)} cells", ""
    shown = 0
    for cell in cells:
        lines = [drift.text for drift in cell.drifts if not drift.equal]
        lines += [time.text for time in cell.times if time.ratio.verdict in ("slower", "faster")]
        if lines and shown < _MAX_CELLS:
            yield f"  {cell.id}", ""
            yield from ((f"    {line}", "") for line in lines)
        shown += bool(lines)
    if shown > _MAX_CELLS:
        yield f"  and {shown - _MAX_CELLS} more cells in compare.md", "dim"
    yield "", ""


def exit_code(comparison: Comparison) -> int:
    """Return 0 without a regression, 1 with one, 3 if no cell was judged in both runs."""
    return {REGRESSION: EXIT_FAIL, UNDECIDED: EXIT_UNDECIDED}.get(comparison.verdict, EXIT_PASS)
