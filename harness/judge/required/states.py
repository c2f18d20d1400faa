"""Records required of a cell that continues from a checkpoint: its state when saved, once loaded, and at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.core.run.records import RankRecord
from harness.judge.evidence.states import whole_state
from harness.judge.required import model
from harness.judge.required.expected import Expected


def problems(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Problems of one completed rank."""
    config = expected.config
    found, right = [state.after for state in record.states], list(config.stored)
    if found != right:
        yield f"states: recorded after steps {found}, expected after {right}"
        return
    exact = len(right) > 1  # the same layout continues
    for number, state in enumerate(record.states):
        where = f"states: after step {state.after}"
        yield from (
            f"{where}: {problem}" for problem in model.parameters_problems(expected, record.place, state.parameters)
        )
        named = [(item.name, item.sharded) for item in record.parameters]
        if config.fingerprints and [(item.name, item.sharded) for item in state.parameters] != named:
            yield f"{where}: parameters are not those of step 0"
        if any(bool(item.digest) != exact for item in state.parameters):
            yield f"{where}: digests are {'missing' if exact else 'present'}"
        if bool(state.random) != (exact and number == 0):
            yield f"{where}: random is {state.random!r}"


def disagreements(expected: Expected, records: Mapping[int, RankRecord]) -> Iterator[str]:
    """All ranks together hold the parameters that were saved, and every rank of a stage the same ones."""
    saved = expected.evidence.saved
    for after in expected.config.stored:
        first: dict[int, tuple[int, list[tuple[str, bool]]]] = {}
        for rank in sorted(records):
            state = next(state for state in records[rank].states if state.after == after)
            names = [(item.name, item.sharded) for item in state.parameters]
            other, right = first.setdefault(records[rank].place.pp, (rank, names))
            if names != right:
                yield f"record of rank {rank}: states: parameters after step {after} are not those of rank {other}"
        if saved is not None:
            held, needed = whole_state(records, after).keys(), whole_state(saved.records, after).keys()
            if odd := sorted(held ^ needed):
                yield f"states: {odd[0]} after step {after} is {'not saved' if odd[0] in held else 'not loaded'}"
