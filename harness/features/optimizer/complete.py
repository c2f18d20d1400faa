"""What a record must hold of the optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.run.records import RankRecord
from harness.judge.evidence.expected import Expected


def missing(expected: Expected, record: RankRecord, *, updated: bool) -> Iterator[str]:
    """Require its weights, gradients and decays, and if a weight was `updated` its moments."""
    optimizer, stage = record.optimizer, record.place.pp
    if not expected.chunks_with_weights(stage):
        return
    if optimizer is None:
        yield from ["optimizer is missing"] if expected.fingerprints else []
        return
    needed = ["gradients", "weights", "matrix_decays"]
    needed += ["moments"] if updated else []
    needed += ["vector_decays"] if expected.model.peft is None and expected.has_norms(stage) else []
    yield from (f"optimizer: {name} is empty" for name in needed if not getattr(optimizer, name))
