"""Packed cells: packed params reach every layer of every chunk of every stage, for every micro-batch, in both legs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from harness.judge.checks.finding import CheckFinding
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.chunks import attention_layers
from harness.judge.evidence.endings import TRAINED, Ending
from harness.judge.evidence.packed_params import missing_class
from harness.judge.locations import RankLocation, extent, fold

# rank, leg, step, micro-batch, chunk, layer
_Key = tuple[int, Literal["metadata", "training"], int, int, int, int | None]


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if not evidence.packed:
        return []
    present: set[_Key] = set()
    missing: dict[_Key, None] = {}
    for place, params, _ in evidence.observations:
        if params is None:
            missing[_key(place)] = None
        else:
            present.add(_key(place))
    for ending in evidence.endings:
        missing |= dict.fromkeys(key for key in _expected(evidence, ending) if key not in present)
    if not missing:
        return []
    places = [RankLocation(key[0], evidence.layout.coordinates(key[0]), *key[1:]) for key in missing]
    first, where = fold(places)
    return [
        CheckFinding(
            fault_class=missing_class(evidence, places),
            message=f"no packed params at {first}{extent(where)}",
            where=where,
            measured=None,
            bound="packed params",
        )
    ]


def _key(place: RankLocation) -> _Key:
    """A location without its coordinates, which follow from the rank."""
    return place.rank, place.leg, place.step, place.micro_batch, place.chunk, place.layer


def _expected(evidence: CellEvidence, ending: Ending) -> Iterator[_Key]:
    """Locations that a rank must have recorded, given how far it came."""
    layout, at, rank = evidence.layout, ending.place, ending.rank
    if rank not in evidence.records:
        return
    completed = ending.ended == "completed"
    # Upstream's own trainer fetches batches while it trains.
    if completed or (evidence.cell.config.own_trainer and ending.progress.leg in (*TRAINED, "end")):
        for step in evidence.fetched_steps:
            for micro_batch in range(len(evidence.plan[step][at.dp])):
                for chunk in range(layout.vpp):
                    yield rank, "metadata", step, micro_batch, chunk, None
    if not completed:
        return
    ran = {seen.step: seen.micro_batches for seen in evidence.records[rank].steps}
    layers = [attention_layers(evidence.cell.config, at.pp, chunk) for chunk in range(layout.vpp)]
    for step in evidence.steps:
        # `micro_batch_count` covers micro-batches that were not run.
        for micro_batch in range(min(len(evidence.plan[step][at.dp]), ran[step])):
            for chunk in range(layout.vpp):
                for layer in layers[chunk]:
                    yield rank, "training", step, micro_batch, chunk, layer
