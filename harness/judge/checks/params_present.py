"""Packed cells: packed params reach every layer of every chunk of every stage, for every micro-batch, in both legs."""

from __future__ import annotations

from collections.abc import Iterator

from harness.judge.endings import TRAINED, Ending
from harness.judge.evidence import CellEvidence
from harness.judge.params import missing_class
from harness.judge.places import Place, fold, reach
from harness.words.outcomes import Finding, Lane


def check(evidence: CellEvidence) -> list[Finding]:
    if not evidence.packed:
        return []
    present: set[tuple[int, str, int, int, int, int | None]] = set()
    missing: dict[tuple[int, str, int, int, int, int | None], Place] = {}
    for sighting in evidence.sightings:
        if sighting.params is None:
            missing[_key(sighting.place)] = sighting.place
        else:
            present.add(_key(sighting.place))
    for ending in evidence.endings:
        for place in _expected(evidence, ending):
            if _key(place) not in present:
                missing.setdefault(_key(place), place)
    if not missing:
        return []
    places = list(missing.values())
    first, where = fold(places)
    return [
        Finding(
            lane=Lane.METADATA,
            check="params_present",
            fault_class=missing_class(evidence, places),
            message=f"no packed params at {first}{reach(where)}",
            where=where,
            measured=None,
            bound="packed params present",
        )
    ]


def _key(place: Place) -> tuple[int, str, int, int, int, int | None]:
    return place.rank, place.leg, place.step, place.chunk, place.micro_batch, place.layer


def _expected(evidence: CellEvidence, ending: Ending) -> Iterator[Place]:
    """Places that a rank which came this far must have recorded."""
    layout, at, rank = evidence.layout, ending.place, ending.rank
    if rank not in evidence.records:
        return
    completed = ending.ended == "completed"
    if completed or ending.progress.leg in (*TRAINED, "end"):
        for micro_batch in range(len(evidence.plan[0][at.dp])):
            for chunk in range(layout.vpp):
                yield Place(rank=rank, at=at, leg="metadata", step=0, micro_batch=micro_batch, chunk=chunk)
    if not completed:
        return
    ran = {seen.step: seen.micro_batches for seen in evidence.records[rank].steps}
    for step in evidence.steps:
        # Of micro-batches that were not run, `micro_batch_count` tells.
        for micro_batch in range(min(len(evidence.plan[step][at.dp]), ran[step])):
            for chunk in range(layout.vpp):
                for layer in _layers(evidence, at.pp, chunk):
                    yield Place(
                        rank=rank, at=at, leg="training", step=step, micro_batch=micro_batch, chunk=chunk, layer=layer
                    )


def _layers(evidence: CellEvidence, stage: int, chunk: int) -> list[int]:
    """Numbers of the chunk's layers; prediction layers follow the last."""
    model, layout = evidence.cell.config.model, evidence.layout
    layers = list(layout.layers(model.layers, stage, chunk))
    if model.mtp and stage == evidence.last_stage and chunk == layout.vpp - 1:
        layers += range(model.layers + 1, model.layers + 1 + model.mtp.layers)
    return layers
