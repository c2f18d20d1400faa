"""Records of a model with an adapter on one layer, in a clean cell over two tp ranks and its control."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.core.run.tensor_records import Fingerprint, FrozenSeen, MergedSeen, ParameterSeen
from harness.features.adapters.config import PeftConfig
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import MODEL, config_of, evidence_for

LAYER = "decoder.layers.0.self_attention.linear_qkv"
FACTORS = (f"{LAYER}.adapter.linear_in.weight", f"{LAYER}.adapter.linear_out.weight")


def adapted_cell() -> CellEvidence:
    """Every weight of the simulated model is frozen; the first layer's qkv has an adapter, which is merged."""
    config = config_of(tp=2, dp=2)
    peft = PeftConfig(targets=("linear_qkv",))
    evidence = evidence_for(replace(config, model=replace(MODEL, peft=peft)))
    for cell in both(evidence):
        shards = cell.layout.tp
        for record in cell.records.values():
            names = [(seen.name, seen.sharded) for seen in record.parameters]
            record.frozen = [FrozenSeen(name=name, sharded=cut, before="1f", after="1f") for name, cut in names]
            record.parameters = [_factor(name, shards) for name in FACTORS]
            record.merged = [_merged(shards)]
    return evidence


def both(evidence: CellEvidence) -> Iterator[CellEvidence]:
    yield evidence
    assert evidence.control is not None
    yield evidence.control


def _factor(name: str, shards: int) -> ParameterSeen:
    return ParameterSeen(name=name, sharded=shards > 1, gradient=_print(shards))


def _merged(shards: int) -> MergedSeen:
    before, after = _print(shards), _print(shards)
    return MergedSeen(name=f"{LAYER}.weight", sharded=shards > 1, before=before, after=after, output_off=1e-7)


def _print(shards: int) -> Fingerprint:
    """A share of a fingerprint that all shards together have."""
    return Fingerprint(norm_sq=4.0 / shards, projections=[1.0 / shards, -2.0 / shards])
