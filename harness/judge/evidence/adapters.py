"""Weights with their adapters merged, assembled from the ranks' shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import MergedSeen
from harness.judge.evidence.assemble import shard_of
from harness.judge.stats.distance import add


def whole_merged(records: Mapping[int, RankRecord]) -> dict[str, MergedSeen]:
    """Weight -> its fingerprints with the adapter merged, in the order in which ranks list them.

    Of copies, the first counts.
    """
    whole: dict[str, MergedSeen] = {}
    counted: set[tuple[str, int]] = set()
    for record, seen in _in_order(records):
        known, key = whole.get(seen.name), (seen.name, shard_of(record.place, seen))
        if known is None:
            whole[seen.name] = seen
        elif key not in counted:
            after = add(known.after, seen.after) if known.after and seen.after else None
            whole[seen.name] = replace(known, before=add(known.before, seen.before), after=after)
        counted.add(key)
    return whole


def _in_order(records: Mapping[int, RankRecord]) -> Iterable[tuple[RankRecord, MergedSeen]]:
    return ((records[rank], seen) for rank in sorted(records) for seen in records[rank].merged)


def merged_copies(records: Mapping[int, RankRecord]) -> Iterator[tuple[RankRecord, MergedSeen, int, MergedSeen]]:
    """Every further copy of a merged weight: its record and itself, then the rank of the first copy and that copy."""
    first: dict[tuple[str, int, int], tuple[int, MergedSeen]] = {}
    for record, seen in _in_order(records):
        key = (seen.name, record.place.pp, shard_of(record.place, seen))
        other, copy = first.setdefault(key, (record.rank, seen))
        if copy is not seen:
            yield record, seen, other, copy
