"""Two reports of one matrix that differ in nearly everything that a comparison can show."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.core.outcomes import Outcome, verdict_of
from harness.core.run.report import Report, ReportCell, TimedRatio
from harness.core.stack import CheckedOut, StackFacts, Version
from harness.core.tolerances import Bound
from tests.sample_report import lanes, sample_report

OLD, NEW = "5e4fc931ba" + 30 * "a", "d30e165203" + 30 * "b"


def changed(report: Report, name: str, **changes: Any) -> Report:
    """The report with the one cell whose id starts with `name` changed."""
    found = [cell for cell in report.cells if cell.id.startswith(name)]
    assert len(found) == 1, name
    cells = [replace(cell, **changes) if cell is found[0] else cell for cell in report.cells]
    return decided(replace(report, cells=cells))


def decided(report: Report) -> Report:
    """The report with the counts and the verdict that follow from its cells."""
    counts = {outcome: sum(cell.outcome is outcome for cell in report.cells) for outcome in Outcome}
    counts[Outcome.REJECTED] = len(report.rejected)
    return replace(report, counts=counts, verdict=verdict_of(counts, report.problems))


def cell_of(report: Report, name: str) -> ReportCell:
    (cell,) = (cell for cell in report.cells if cell.id.startswith(name))
    return cell


def earlier_report() -> Report:
    """The sample report a day earlier: the cell without metadata passed, another failed, one did not exist."""
    report = replace(sample_report(), run_id="smoke-20260821T101530Z-11aa")
    whole = [replace(view, state="ok", ended="completed") for view in cell_of(report, "tp2-pp4-cp1-sft").ranks]
    curve = cell_of(report, "tp2-pp1-cp1-sft").curve
    fixed = {"lanes": lanes(), "findings": [], "failure": None, "ranks": whole, "curve": curve}
    report = changed(report, "tp2-pp4-cp1-sft", outcome=Outcome.PASS, **fixed)
    broken = cell_of(report, "tp1-pp2-cp2-reference")
    report = changed(report, "tp2-pp2-cp1-sft", outcome=Outcome.FAIL, lanes=broken.lanes, findings=broken.findings)
    provenance = replace(
        report.provenance,
        started="2026-08-21T10:15:30+00:00",
        packages={"megatron-core": "0.19.1", "torch": "2.9.0+cpu", "transformer-engine": "not installed"},
    )
    cells = [cell for cell in report.cells if not cell.id.startswith("tp1-pp2-cp1-vpp2")]
    return decided(slowed(replace(report, cells=cells, provenance=provenance), 1.0))


def later_report() -> Report:
    """The sample report, in which one cell takes three times as long and the control computes other numbers."""
    report = slowed(sample_report(), 3.0)
    control = report.cells[0]
    curve = replace(control.curve, loss=[value * (1 + 1e-3 * step) for step, value in enumerate(control.curve.loss)])
    return changed(report, control.id, curve=curve)


def slowed(report: Report, factor: float) -> Report:
    """Add a timing leg of seven rounds to the one-rank cells; the sft cell's times with many documents x `factor`."""
    generator = random.Random(round(factor))
    for path in ("reference", "sft"):
        times = factor if path == "sft" else 1.0
        rounds = {
            "step, 4 documents": [0.1 * generator.uniform(0.97, 1.03) for _ in range(7)],
            "step, 256 documents": [0.1 * times * generator.uniform(0.97, 1.03) for _ in range(7)],
        }
        ratio = TimedRatio(
            what="whole step, 256 documents over 4",
            median=times,
            low=times * 0.96,
            high=times * 1.05,
            rounds=7,
            bound=Bound(value=4.0, unit="factor"),
            verdict="no difference",
        )
        name = f"tp1-pp1-cp1-{path}"
        speed = replace(cell_of(report, name).throughput, rounds_s=rounds, ratios=[ratio])
        report = changed(report, name, throughput=speed)
    return report


def in_stack(report: Report, commit: str, **packages: str) -> Report:
    """The report with all cells in the stack `main`, a checkout of Megatron-LM at a commit."""
    stack = StackFacts(
        checkouts=(
            CheckedOut(project="megatron-lm", ref="main", commit=commit, reverted=(), repository="/repository"),
        ),
        packages=tuple(Version(name=name, version=version) for name, version in packages.items()),
        python="3.12.4",
    )
    cells = [replace(cell, axes={**cell.axes, "stack": "main"}) for cell in report.cells]
    return replace(report, cells=cells, provenance=replace(report.provenance, stacks={"main": stack}))


def with_loss(report: Report, name: str, change: Callable[[list[float]], list[float]]) -> Report:
    curve = cell_of(report, name).curve
    return changed(report, name, curve=replace(curve, loss=change(curve.loss)))
