"""The samples of a cell's timing leg, put together from the ranks."""

from __future__ import annotations

from collections.abc import Iterable

from harness.judge.evidence import CellEvidence
from harness.judge.paired import PairedRatio, paired_ratio

Load = tuple[str, int]  # name, documents per pack


def times_of(evidence: CellEvidence) -> dict[Load, dict[int, float]]:
    """Load -> round -> seconds: a round takes as long as its slowest rank. Loads in ascending order of documents."""
    times: dict[Load, dict[int, float]] = {}
    for record in evidence.records.values():
        for seen in record.timings:
            rounds = times.setdefault((seen.load, seen.documents), {})
            rounds[seen.round] = max(seen.seconds, rounds.get(seen.round, 0.0))
    return dict(sorted(times.items()))


def ratio_of(times: dict[Load, dict[int, float]], load: Load, base: Load) -> PairedRatio | None:
    """Of the rounds that both have."""
    over, under = times.get(load, {}), times.get(base, {})
    rounds = sorted(over.keys() & under.keys())
    return paired_ratio([over[number] for number in rounds], [under[number] for number in rounds])


def documents_of(times: Iterable[Load], name: str) -> list[int]:
    """Documents per pack of the loads of one name, ascending."""
    return sorted(documents for load, documents in times if load == name)
