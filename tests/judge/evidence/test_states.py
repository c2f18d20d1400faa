from __future__ import annotations

from dataclasses import replace

import pytest

from harness.judge.evidence.assemble import state_after, whole_state
from harness.judge.stats.distance import fingerprint_distance
from tests.judge.simulator import config_of, evidence_for

CELL = replace(config_of("sft", tp=2, pp=2, dp=2), trainer="megatron", resume="tp4-pp1")


def test_a_state_is_found_by_the_number_of_steps() -> None:
    record = evidence_for(CELL).records[0]
    assert state_after(record, 1) is record.states[0]
    assert state_after(record, 2) is None


@pytest.mark.parametrize("part", ["weight", "first_moment", "second_moment"])
def test_whole_tensors_are_the_same_in_every_layout(part: str) -> None:
    evidence = evidence_for(CELL)
    assert evidence.resumed is not None
    saved, loaded = (whole_state(found.records, 1) for found in (evidence, evidence.resumed))
    assert saved.keys() == loaded.keys()
    assert len(saved) == 3 + 3 * 4  # embedding, final norm, output layer, and three of each of four layers
    for name, found in loaded.items():
        assert fingerprint_distance(getattr(found, part), getattr(saved[name], part)) < 1e-12


def test_of_copies_the_first_counts() -> None:
    evidence = evidence_for(CELL)
    right = whole_state(evidence.records, 1)
    for rank, record in evidence.records.items():
        if record.place.dp or rank % 2:  # other replicas, and of tp rank 1 what is not sharded
            for seen in record.states[0].parameters:
                if record.place.dp or not seen.sharded:
                    seen.weight.norm_sq = 99.0
    assert whole_state(evidence.records, 1) == right
