"""Every place of the ranks of a cell at which packed params were looked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from harness.judge.places import Place
from harness.words.records import RankRecord, SeenParams


class Sighting(NamedTuple):
    """Packed params as one rank saw them at one place; None when it saw none."""

    place: Place
    params: SeenParams | None
    device: str | None  # of the model on that rank, None when it did not say


def sightings_of(records: Iterable[RankRecord]) -> list[Sighting]:
    """The metadata leg, then the training leg, of every record.

    Equal params on one kind of device are one object, since ranks hold the same few many times over.
    """
    known: dict[tuple[Any, ...], list[SeenParams]] = {}
    return [sighting for record in records for sighting in _sightings(record, known)]


def _sightings(record: RankRecord, known: dict[tuple[Any, ...], list[SeenParams]]) -> Iterator[Sighting]:
    device = record.environment.get("torch_device")
    table: list[SeenParams | None] = [_interned(params, device, known) for params in record.packed_params]
    table.append(None)
    at, rank = record.place, record.rank
    for batch in record.batches:
        place = Place(rank, at, "metadata", 0, batch.micro_batch, batch.chunk)
        yield Sighting(place, table[-1 if batch.params is None else batch.params], device)
    for seen in record.layers:
        place = Place(rank, at, "training", seen.step, seen.micro_batch, seen.chunk, seen.layer)
        yield Sighting(place, table[-1 if seen.params is None else seen.params], device)


def _interned(params: SeenParams, device: str | None, known: dict[tuple[Any, ...], list[SeenParams]]) -> SeenParams:
    """The first of equal params."""
    alike = known.setdefault((device, tuple(params.cu_seqlens_q or ()), params.max_seqlen_q), [])
    for other in alike:
        if other == params:
            return other
    alike.append(params)
    return params
