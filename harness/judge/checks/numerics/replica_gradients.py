"""Copies of a gradient agree: over cp and dp after the reduction, over tp where the parameter is not sharded."""

from __future__ import annotations

from harness.core.run.records import RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.assemble import copies
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import beyond, bound_text, fingerprint_distance, finite, stated
from harness.judge.stats.noise import least_norms


def check(evidence: CellEvidence) -> list[CheckFinding]:
    bound = evidence.own.parameter_gradient
    least = least_norms(evidence.own, (one.fingerprint for one in evidence.gradients.values()))
    wrong: list[tuple[str, RankRecord, int, float]] = []
    for record, seen, other, copy in copies(evidence.records):
        if seen.gradient != copy.gradient and finite(copy.gradient) and finite(seen.gradient):
            off = fingerprint_distance(seen.gradient, copy.gradient, bound, least_norm=least.get(seen.name, 0.0))
            if beyond(off, bound):
                wrong.append((seen.name, record, other, off))
    if not wrong:
        return []
    name, record, other, off = wrong[0]
    names = list(dict.fromkeys(item[0] for item in wrong))
    ranks = sorted({item[1].rank for item in wrong})
    return [
        CheckFinding(
            fault_class=fault_classes.GRADIENT_REDUCTION,
            message=f"gradient of {name} on rank {record.rank} ({record.place}) differs from its copy on rank {other} "
            f"by {off:.3g} > {bound_text(bound)}; "
            f"differing: {numbered('parameter', names)} on {numbered('rank', ranks)}",
            where=where_of(record.place, rank=record.rank, parameter=name, step=0) | {"ranks": ranks},
            measured=off,
            bound=stated(bound),
        )
    ]
