from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import TensorSeen
from harness.judge.checks import canaries
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import config_of, evidence_for, leg_of, place_of


def config() -> CellConfig:
    """A cell that truncates no document in step 0."""
    uncut = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    return replace(config_of("unpacked", tp=2, canaries=("truncation",)), documents=uncut)


def test_the_first_wrong_slot_of_a_cut_document_is_named() -> None:
    evidence = evidence_for(config())
    wrong = TensorSeen(shape=[1, 64], dtype="torch.int64", mismatches=63, first=[0, 0, 17, 99])
    batches = leg_of(evidence.records[1], "truncation").batches
    batches[0].tokens = wrong
    (finding,) = canaries.truncation(evidence)
    assert place_of(finding, "rank", "tp", "field", "document", "token") == (1, 1, "tokens", 0, 0)
    assert finding.fault_class == fault_classes.TRUNCATION
    assert "token 0 of document 0 is 99, expected 17" in finding.message


def test_measured_and_bound_are_the_value_found_and_the_planned_one() -> None:
    evidence = evidence_for(config())
    wrong = TensorSeen(shape=[1, 64], dtype="torch.int64", mismatches=63, first=[0, 0, 17, 99])
    leg_of(evidence.records[0], "truncation").batches[0].labels = wrong
    (finding,) = canaries.truncation(evidence)
    assert (finding.measured, finding.bound["value"]) == (99, 17)


def test_without_a_first_slot_the_number_of_wrong_slots_is_measured() -> None:
    evidence = evidence_for(config())
    wrong = TensorSeen(shape=[1, 60], dtype="torch.int64", mismatches=4)
    leg_of(evidence.records[0], "truncation").batches[0].labels = wrong
    (finding,) = canaries.truncation(evidence)
    assert (finding.measured, finding.bound["value"]) == (4, 0)
    assert "its shape is [1, 60]" in finding.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_seqlen_q": 7}, "max_seqlen_q on rank 1 is 7 in micro-batch 0, expected"),
        ({"qkv_format": "bshd"}, "qkv_format on rank 1 is bshd in micro-batch 0, expected thd"),
    ],
)
def test_packed_params_of_cut_documents_are_those_of_the_plan(change: dict[str, Any], words: str) -> None:
    evidence = evidence_for(
        replace(config_of("reference", tp=2, canaries=("truncation",)), documents=config().documents)
    )
    assert canaries.truncation(evidence) == []
    record = evidence.records[1]
    batch = leg_of(record, "truncation").batches[0]
    assert batch.params is not None
    record.packed_params.append(replace(record.packed_params[batch.params], **change))
    batch.params = len(record.packed_params) - 1
    (finding,) = canaries.truncation(evidence)
    assert words in finding.message
    assert place_of(finding, "rank", "leg", "field") == (1, "truncation", next(iter(change)))
