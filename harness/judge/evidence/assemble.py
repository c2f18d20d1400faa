"""Assembles values of the whole model from the ranks' shares: sums in float64, ranks in order."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.core.cell.layout import Coordinates
from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import ActivationSeen, Fingerprint, MergedSeen, ParameterSeen, UpdateSeen
from harness.judge.stats.distance import add


@dataclass(frozen=True, kw_only=True)
class ParameterGradient:
    fingerprint: Fingerprint
    stage: int
    shards: tuple[Fingerprint, ...] = ()  # by tp rank, if the parameter is sharded over tp
    parts: tuple[Fingerprint, ...] = ()  # if it is not, see records.ParameterSeen

    def part(self, start: int, count: int) -> Fingerprint:
        """Fingerprint of consecutive parts together."""
        return functools.reduce(add, self.parts[start : start + count])


def whole_gradients(ranks: Iterable[tuple[Coordinates, Sequence[ParameterSeen]]]) -> dict[str, ParameterGradient]:
    """Parameter -> gradient fingerprint of the whole tensor, in the order the ranks list them.

    Shards add up over tp. Of replicated parameters, and of the copies on cp, dp and (tied embeddings) other stages, the
    first counts: `replica_gradients` checks that copies agree. The first rank of an expert need not be cp 0, dp 0.
    """
    whole: dict[str, ParameterGradient] = {}
    for place, seen in _counted(ranks):
        known = whole.get(seen.name)
        shards = (seen.gradient,) if seen.sharded else ()
        if known is None:
            whole[seen.name] = ParameterGradient(
                fingerprint=seen.gradient, stage=place.pp, shards=shards, parts=tuple(seen.parts)
            )
        else:
            whole[seen.name] = ParameterGradient(
                fingerprint=add(known.fingerprint, seen.gradient), stage=known.stage, shards=known.shards + shards
            )
    return whole


def _counted(
    ranks: Iterable[tuple[Coordinates, Sequence[ParameterSeen]]],
) -> Iterator[tuple[Coordinates, ParameterSeen]]:
    """The records that the whole tensors consist of: one of each shard, the shards of a parameter in order of tp."""
    found: set[tuple[str, int]] = set()
    for place, parameters in ranks:
        for seen in parameters:
            key = (seen.name, shard_of(place, seen))
            if key not in found:
                found.add(key)
                yield place, seen


def shard_of(place: Coordinates, seen: ParameterSeen | MergedSeen) -> int:
    """The number of a rank's shard of a parameter; -1 if it holds all of it.

    Experts that are split otherwise than other weights have the number in the record.
    """
    if not seen.sharded:
        return -1
    return place.tp if seen.shard is None else seen.shard


def whole_updates(ranks: Iterable[tuple[Coordinates, Sequence[ParameterSeen]]]) -> dict[str, UpdateSeen]:
    """Parameter -> fingerprints of the updates of the whole tensor, put together as in `whole_gradients`."""
    whole: dict[str, UpdateSeen] = {}
    for _, seen in _counted(ranks):
        known, update = whole.get(seen.name), seen.update
        if update is None:
            continue
        whole[seen.name] = (
            update
            if known is None
            else UpdateSeen(
                first_moment=add(known.first_moment, update.first_moment),
                second_moment=add(known.second_moment, update.second_moment),
                change=add(known.change, update.change),
                trained=add(known.trained, update.trained) if known.trained and update.trained else None,
            )
        )
    return whole


def copies(records: Mapping[int, RankRecord]) -> Iterator[tuple[RankRecord, ParameterSeen, int, ParameterSeen]]:
    """Every further copy of a parameter, over dp, cp and, where it is not sharded, tp: its record and itself, then the
    rank of the first copy and that copy.
    """
    first: dict[tuple[str, int, int], tuple[int, ParameterSeen]] = {}
    for rank in sorted(records):
        record = records[rank]
        for seen in record.parameters:
            key = (seen.name, record.place.pp, shard_of(record.place, seen))
            other, copy = first.setdefault(key, (rank, seen))
            if copy is not seen:
                yield record, seen, other, copy


def whole_activations(
    ranks: Iterable[tuple[Coordinates, Sequence[ActivationSeen]]], *, sp: bool
) -> dict[int, dict[int, Fingerprint]]:
    """Layer (0: embedding) -> document -> fingerprint over all tokens of the document.

    Summed over cp and, with sequence parallel, tp; without it every tp rank holds all tokens and tp 0 counts.
    """
    whole: dict[int, dict[int, Fingerprint]] = {}
    for place, layers in ranks:
        if place.tp and not sp:
            continue
        for seen in layers:
            layer = whole.setdefault(seen.layer, {})
            for document, part in seen.documents.items():
                layer[document] = add(layer[document], part) if document in layer else part
    return {layer: whole[layer] for layer in sorted(whole)}
