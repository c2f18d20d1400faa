"""A bisection as text for the terminal. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.text import one_line
from harness.judge.bisect.result import Bisection, Change, PointKind, short

_FINDINGS, _SKIPPED = 5, 5
_REASON = 300  # characters


def render_text(found: Bisection) -> str:
    return "\n".join(_lines(found))


def _lines(found: Bisection) -> Iterator[str]:
    yield found.title
    if found.found is None:
        yield "  skipped points leave these candidates:"
        for change in found.candidates:
            yield f"    {short(change.name, found.kind)} {change.subject}".rstrip()
    else:
        yield from _change(found.found, found)
    point = found.evidence
    if point is not None:
        yield f"  at {short(point.name, found.kind)}, which is {point.state}:"
        findings = found.findings
        yield from (f"    {item.lane.value}, {item.check}: {item.message}" for item in findings[:_FINDINGS])
        if len(findings) > _FINDINGS:
            yield f"    and {len(findings) - _FINDINGS} more findings: {point.run}"
    yield from (f"  note: {note}" for note in found.notes)
    yield f"  {_counts(found)}"
    for point in found.skipped[:_SKIPPED]:
        yield f"    skipped {short(point.name, found.kind)}: {one_line(point.reason, _REASON)}"
    if len(found.skipped) > _SKIPPED:
        yield f"    and {len(found.skipped) - _SKIPPED} more, see result.json"
    yield f"  reproduce: {found.reproduce}"
    if found.nested is not None:
        yield "inside the dependency that it updates:"
        yield from (f"  {line}" for line in _lines(found.nested))


def _change(change: Change, found: Bisection) -> Iterator[str]:
    if change.author:
        yield f"  {change.author}, {change.date}"
    for parent in change.parents:
        what = "parent" if found.kind is PointKind.COMMIT else "previous release"
        yield f"  {what} {short(parent.name, found.kind)} is {parent.state}"


def _counts(found: Bisection) -> str:
    kept = sum(point.kept for point in found.points)
    parts = [f"{len(found.points)} {found.kind}s judged"]
    parts += [f"{kept} of them by an earlier bisection"] if kept else []
    parts += [f"{len(found.skipped)} skipped"] if found.skipped else []
    return ", ".join(parts)
