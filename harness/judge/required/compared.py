"""The cells that a cell is compared with: its control, and the cell of the base stack that it is timed against."""

from __future__ import annotations

from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import TURN, paired_times
from harness.judge.import_check import import_problem
from harness.judge.required.audit import incomplete
from harness.judge.required.identity import rejection_problem, untrusted


def other_device(evidence: CellEvidence, other: CellEvidence) -> str:
    """How the kinds of device of two cells differ; empty if they do not, or are unknown."""
    own, others = _kinds(evidence), _kinds(other)
    return f"it ran on {others}, this cell on {own}" if own and others and own != others else ""


def base_problem(evidence: CellEvidence) -> str:
    """Why the cell cannot be timed against its base; empty if it can or need not be, or if a rank states why not."""
    timing, base = evidence.cell.config.timing, evidence.base
    if not timing.turns or timing.first:
        return ""
    problem = _base_problem(evidence, base, timing.rounds) if base else "it is not in the run"
    name = f"its base, cell {evidence.cell.base}" if evidence.cell.base else "its base"
    return f"the cell cannot be timed against {name}: {problem}" if problem else ""


def _base_problem(evidence: CellEvidence, base: CellEvidence, rounds: int) -> str:
    problem = rejection_problem(base) if base.rejected else untrusted(base) or import_problem(base.stack, base.records)
    problem = problem or incomplete(base) or other_device(evidence, base)
    if problem:
        return problem
    sides = (*evidence.records.values(), *base.records.values())
    stated = any(TURN[0] in record.untimed for record in sides)
    shared = len(paired_times(evidence)[0])
    return "" if stated or shared >= rounds else f"they share {shared} of {rounds} turns, and no rank states why"


def _kinds(evidence: CellEvidence) -> str:
    """The kinds of device that the ranks of a cell recorded, e.g. "cuda"."""
    devices = [record.environment.get("torch_device", "") for record in evidence.records.values()]
    return " and ".join(sorted({device.partition(":")[0] for device in devices if device}))
