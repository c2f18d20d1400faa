"""Whole tensors from the shards that ranks recorded: gradients, updates, states of checkpoints, adapters."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from harness.core.cell.layout import Coordinates
from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import (
    STORED,
    ActivationSeen,
    Fingerprint,
    MergedSeen,
    ParameterSeen,
    StateSeen,
    StoredParameter,
    UpdateSeen,
)
from harness.judge.stats.distance import add


@dataclass(frozen=True, kw_only=True)
class ParameterGradient:
    """The gradient of a whole parameter, with the pieces that it was put together from."""

    fingerprint: Fingerprint
    stage: int
    shards: tuple[Fingerprint, ...] = ()  # by tp rank, if the parameter is sharded over tp
    parts: tuple[Fingerprint, ...] = ()  # if it is not, see records.ParameterSeen

    def part(self, start: int, count: int) -> Fingerprint:
        """Return the fingerprint of consecutive parts together."""
        return functools.reduce(add, self.parts[start : start + count])


def whole_gradients(ranks: Iterable[tuple[Coordinates, Sequence[ParameterSeen]]]) -> dict[str, ParameterGradient]:
    """Return parameter -> gradient fingerprint of the whole tensor, in the order the ranks list them.

    Shards add up over tp. Of replicated parameters, and of the copies on cp, dp and (tied embeddings) other stages, the
    first counts: `replica_gradients` checks that copies agree. The first rank of an expert need not be cp 0, dp 0.
    """
    whole: dict[str, ParameterGradient] = {}
    for place, parameter in _counted(ranks):
        known = whole.get(parameter.name)
        shards = (parameter.gradient,) if parameter.sharded else ()
        if known is None:
            whole[parameter.name] = ParameterGradient(
                fingerprint=parameter.gradient, stage=place.pp, shards=shards, parts=tuple(parameter.parts)
            )
        else:
            whole[parameter.name] = ParameterGradient(
                fingerprint=add(known.fingerprint, parameter.gradient), stage=known.stage, shards=known.shards + shards
            )
    return whole


def _counted(
    ranks: Iterable[tuple[Coordinates, Sequence[ParameterSeen]]],
) -> Iterator[tuple[Coordinates, ParameterSeen]]:
    """Yield the records that the whole tensors consist of: one of each shard, a parameter's shards in order of tp."""
    yielded: set[tuple[str, int]] = set()
    for place, parameters in ranks:
        for parameter in parameters:
            key = (parameter.name, shard_of(place, parameter))
            if key not in yielded:
                yielded.add(key)
                yield place, parameter


def shard_of(place: Coordinates, tensor: ParameterSeen | MergedSeen) -> int:
    """Return the number of a rank's shard of a parameter; -1 if it holds all of it.

    Experts that are split otherwise than other weights have the number in the record.
    """
    if not tensor.sharded:
        return -1
    return place.tp if tensor.shard is None else tensor.shard


def whole_updates(ranks: Iterable[tuple[Coordinates, Sequence[ParameterSeen]]]) -> dict[str, UpdateSeen]:
    """Return parameter -> fingerprints of the updates of the whole tensor, put together as in `whole_gradients`."""
    whole: dict[str, UpdateSeen] = {}
    for _, parameter in _counted(ranks):
        known, update = whole.get(parameter.name), parameter.update
        if update is None:
            continue
        whole[parameter.name] = (
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
    """Yield every further copy of a parameter, over dp, cp and, where it is not sharded, tp.

    Its record and itself, then the rank of the first copy and that copy.
    """
    first: dict[tuple[str, int, int], tuple[int, ParameterSeen]] = {}
    for rank in sorted(records):
        record = records[rank]
        for parameter in record.parameters:
            key = (parameter.name, record.place.pp, shard_of(record.place, parameter))
            first_rank, copy = first.setdefault(key, (rank, parameter))
            if copy is not parameter:
                yield record, parameter, first_rank, copy


def whole_activations(
    ranks: Iterable[tuple[Coordinates, Sequence[ActivationSeen]]], *, sp: bool
) -> dict[int, dict[int, Fingerprint]]:
    """Return layer (0: embedding) -> document -> fingerprint over all tokens of the document.

    Summed over cp and, with sequence parallel, tp; without it every tp rank holds all tokens and tp 0 counts.
    """
    whole: dict[int, dict[int, Fingerprint]] = {}
    for place, layers in ranks:
        if place.tp and not sp:
            continue
        for activation in layers:
            layer = whole.setdefault(activation.layer, {})
            for document, part in activation.documents.items():
                layer[document] = add(layer[document], part) if document in layer else part
    return {layer: whole[layer] for layer in sorted(whole)}


def state_after(record: RankRecord, after: int) -> StateSeen | None:
    """Return the state that a rank recorded after so many steps; None if it did not."""
    return next((state for state in record.states if state.after == after), None)


def held_copies(
    records: Mapping[int, RankRecord], after: int
) -> Iterator[tuple[RankRecord, StoredParameter, int, StoredParameter]]:
    """Yield every further copy of a stored parameter, over dp, cp and, where it is not sharded, tp.

    Its record and itself, then the rank of the first copy and that copy.
    """
    first: dict[tuple[str, int, int], tuple[int, StoredParameter]] = {}
    for record, parameter in _stored(records, after):
        key = (parameter.name, record.place.pp, record.place.tp if parameter.sharded else -1)
        first_rank, copy = first.setdefault(key, (record.rank, parameter))
        if copy is not parameter:
            yield record, parameter, first_rank, copy


def whole_state(records: Mapping[int, RankRecord], after: int) -> dict[str, StoredParameter]:
    """Return parameter -> its whole tensors: shards add up over tp; of copies, which must be equal, the first."""
    parts: dict[str, dict[tuple[int, int], StoredParameter]] = {}
    for record, parameter in _stored(records, after):
        known = parts.setdefault(parameter.name, {})
        stage = min((pp for pp, _ in known), default=record.place.pp)  # a tied embedding is also on the last stage
        if record.place.pp == stage:
            known.setdefault((stage, record.place.tp if parameter.sharded else -1), parameter)
    return {name: _whole_parameter(name, list(held.values())) for name, held in parts.items()}


def _whole_parameter(name: str, shards: list[StoredParameter]) -> StoredParameter:
    weight, first, second = (reduce(add, [getattr(shard, part) for shard in shards]) for part in STORED)
    return StoredParameter(name=name, sharded=False, weight=weight, first_moment=first, second_moment=second)


def _stored(records: Mapping[int, RankRecord], after: int) -> Iterator[tuple[RankRecord, StoredParameter]]:
    for rank in sorted(records):
        state = state_after(records[rank], after)
        for parameter in state.parameters if state else ():
            yield records[rank], parameter


def whole_merged(records: Mapping[int, RankRecord]) -> dict[str, MergedSeen]:
    """Return weight -> its fingerprints with the adapter merged, in the order in which ranks list them.

    Of copies, the first counts.
    """
    whole: dict[str, MergedSeen] = {}
    counted: set[tuple[str, int]] = set()
    for record, weight in _merged_seen(records):
        known, key = whole.get(weight.name), (weight.name, shard_of(record.place, weight))
        if known is None:
            whole[weight.name] = weight
        elif key not in counted:
            after = add(known.after, weight.after) if known.after and weight.after else None
            whole[weight.name] = replace(known, before=add(known.before, weight.before), after=after)
        counted.add(key)
    return whole


def _merged_seen(records: Mapping[int, RankRecord]) -> Iterable[tuple[RankRecord, MergedSeen]]:
    return ((records[rank], weight) for rank in sorted(records) for weight in records[rank].merged)


def merged_copies(records: Mapping[int, RankRecord]) -> Iterator[tuple[RankRecord, MergedSeen, int, MergedSeen]]:
    """Yield every further copy of a merged weight: its record and itself, then the first copy's rank and that copy."""
    first: dict[tuple[str, int, int], tuple[int, MergedSeen]] = {}
    for record, weight in _merged_seen(records):
        key = (weight.name, record.place.pp, shard_of(record.place, weight))
        first_rank, copy = first.setdefault(key, (record.rank, weight))
        if copy is not weight:
            yield record, weight, first_rank, copy
