"""The packed params that each rank of a cell saw, location by location."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from harness.core.run.records import RankRecord, SeenParams
from harness.judge.locations import RankLocation


class Observation(NamedTuple):
    """Packed params as one rank saw them at one location; None if it saw none."""

    place: RankLocation
    params: SeenParams | None
    device: str | None  # of the model on that rank, None if not recorded


def observations_of(records: Iterable[RankRecord]) -> list[Observation]:
    """Observations of the metadata leg, then of the training leg, of every record.

    Equal params on devices of one name are one object, since many ranks hold the same few.
    """
    known: dict[tuple[Any, ...], list[SeenParams]] = {}
    return [observation for record in records for observation in _observations(record, known)]


def _observations(record: RankRecord, known: dict[tuple[Any, ...], list[SeenParams]]) -> Iterator[Observation]:
    device = record.environment.get("torch_device")
    table: list[SeenParams | None] = [_interned(params, device, known) for params in record.packed_params]
    table.append(None)
    at, rank = record.place, record.rank
    for batch in record.batches:
        place = RankLocation(rank, at, "metadata", batch.step, batch.micro_batch, batch.chunk)
        yield Observation(place, table[-1 if batch.params is None else batch.params], device)
    for seen in record.layers:
        place = RankLocation(rank, at, "training", seen.step, seen.micro_batch, seen.chunk, seen.layer)
        yield Observation(place, table[-1 if seen.params is None else seen.params], device)


def _interned(params: SeenParams, device: str | None, known: dict[tuple[Any, ...], list[SeenParams]]) -> SeenParams:
    """The equal params seen first, or these if they are new."""
    similar = known.setdefault((device, tuple(params.cu_seqlens_q or ()), params.max_seqlen_q), [])
    for other in similar:
        if other == params:
            return other
    similar.append(params)
    return params
