from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from harness.core.cell.config import TrainConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import WorkloadSeen
from harness.judge.checks import batches
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import at, config_of, evidence_for, place_of, the_only_finding


def interleaved() -> CellEvidence:
    return evidence_for(config_of(pp=2, vpp=2))


def test_a_replica_that_counts_another_number_of_micro_batches() -> None:
    evidence = evidence_for(config_of("scheduler", dp=2))
    [record] = at(evidence, dp=1)
    record.workloads[1].micro_batches += 1
    finding = the_only_finding(evidence, "workload")
    assert place_of(finding, "dp", "step", "field", "ranks") == (1, 0, "micro_batches", [1])
    assert finding.measured == finding.bound + 1
    assert finding.fault_class == fault_classes.WORKLOAD


@pytest.mark.parametrize("field", ["tokens", "squares"])
def test_a_count_per_model_chunk_is_named_by_its_factor(field: str) -> None:
    evidence = interleaved()
    for record in evidence.records.values():
        for seen in record.workloads:
            setattr(seen, field, 2 * getattr(seen, field))
    finding = the_only_finding(evidence, "workload")
    assert finding.where["field"] == field
    assert finding.where["ranks"] == [0, 1]
    assert "vpp" in finding.message


def test_the_truth_does_not_depend_on_model_chunks() -> None:
    counted = [[(seen.tokens, seen.squares) for seen in record.workloads] for record in interleaved().records.values()]
    plain = [[(seen.tokens, seen.squares) for seen in evidence_for(config_of()).records[0].workloads]]
    assert counted == plain * 2


def test_a_data_path_that_counts_nothing_is_not_judged() -> None:
    evidence = evidence_for(config_of("sft"))
    assert [record.workloads for record in evidence.records.values()] == [[]]
    assert batches.workload(evidence) == []


@pytest.mark.parametrize(("data_path", "named"), [("reference", True), ("unpacked", False)])
def test_only_packs_can_be_counted_as_if_they_were_one_document(data_path: str, named: bool) -> None:
    evidence = evidence_for(config_of(data_path, micro_batch_size=2))
    packs = [truth.batch.slots for truth in evidence.plan[0][0]]
    squares = sum(slots**2 for slots in packs)
    whole = WorkloadSeen(leg="training", step=0, micro_batches=len(packs), tokens=sum(packs), squares=squares)
    evidence.records[0].workloads = [whole]
    found = [finding for finding in batches.workload(evidence) if finding.where["field"] == "squares"]
    assert ["as if every pack were one document" in finding.message for finding in found] == [named]


def test_a_sum_that_float32_cannot_hold_may_be_off_by_its_rounding_and_by_no_more() -> None:
    """Megatron-LM's schedulers broadcast the sums as float32."""
    long = replace(
        config_of("scheduler"),
        train=TrainConfig(steps=1, global_batch=4, seq_length=8192),
        documents=DocumentsConfig(mode="file", max_seq_len=8192, lengths=(4099, 4097, 4095, 4093)),
    )
    evidence = evidence_for(long)
    seen = evidence.records[0].workloads[0]
    right = seen.squares
    (seen.squares,) = struct.unpack("f", struct.pack("f", right + 1))
    assert seen.squares != right
    assert batches.workload(evidence) == []
    seen.squares = right - 4095**2 // 1000
    assert batches.workload(evidence)[0].where["field"] == "squares"
    seen.squares, seen.tokens = right, seen.tokens + 1
    assert batches.workload(evidence)[0].where["field"] == "tokens"
