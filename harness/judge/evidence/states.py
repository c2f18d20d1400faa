"""The state that a checkpoint holds, as the ranks recorded it, with whole tensors put together from their shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import STORED, StateSeen, StoredParameter
from harness.judge.stats.distance import add


def state_after(record: RankRecord, after: int) -> StateSeen | None:
    """The state that a rank recorded after so many steps; None if it did not."""
    return next((state for state in record.states if state.after == after), None)


def held_copies(
    records: Mapping[int, RankRecord], after: int
) -> Iterator[tuple[RankRecord, StoredParameter, int, StoredParameter]]:
    """Every further copy of a parameter, over dp, cp and, where it is not sharded, tp: its record and itself, then the
    rank of the first copy and that copy.
    """
    first: dict[tuple[str, int, int], tuple[int, StoredParameter]] = {}
    for record, seen in _in_order(records, after):
        key = (seen.name, record.place.pp, record.place.tp if seen.sharded else -1)
        other, copy = first.setdefault(key, (record.rank, seen))
        if copy is not seen:
            yield record, seen, other, copy


def whole_state(records: Mapping[int, RankRecord], after: int) -> dict[str, StoredParameter]:
    """Parameter -> its whole tensors: shards add up over tp; of copies, which must be equal, the first counts."""
    parts: dict[str, dict[tuple[int, int], StoredParameter]] = {}
    for record, seen in _in_order(records, after):
        known = parts.setdefault(seen.name, {})
        stage = min((pp for pp, _ in known), default=record.place.pp)  # a tied embedding is also on the last stage
        if record.place.pp == stage:
            known.setdefault((stage, record.place.tp if seen.sharded else -1), seen)
    return {name: _sum(name, list(held.values())) for name, held in parts.items()}


def _sum(name: str, shards: list[StoredParameter]) -> StoredParameter:
    weight, first, second = (reduce(add, [getattr(shard, part) for shard in shards]) for part in STORED)
    return StoredParameter(name=name, sharded=False, weight=weight, first_moment=first, second_moment=second)


def _in_order(records: Mapping[int, RankRecord], after: int) -> Iterator[tuple[RankRecord, StoredParameter]]:
    for rank in sorted(records):
        state = state_after(records[rank], after)
        for seen in state.parameters if state else ():
            yield records[rank], seen
