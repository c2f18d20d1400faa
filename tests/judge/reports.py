"""Reports built straight from evidence, without files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.core.run.provenance import Provenance
from harness.core.run.report import Report
from harness.core.run.run_plan import RunPlan
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.reporting.build import judge_cells, report_of


def build_report(
    plan: RunPlan,
    evidence: Iterable[CellEvidence],
    *,
    today: str,
    timing: Mapping[str, float],
    provenance: Provenance | None = None,
) -> Report:
    """Judge every planned cell. `evidence` holds all of them, controls first, as `evidence_in_turn` yields them.

    `today` is an ISO date; `timing` holds wall_s and other measured times; `provenance`: None for an empty one.
    """
    judged = judge_cells(plan, evidence, today=today, crashed=_raise_again)
    return report_of(plan, judged, timing=timing, provenance=provenance or Provenance())


def _raise_again(cell: str, error: Exception) -> str:
    raise error
