"""Every rank reports what its release and its place make it report, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.records import ImportProof
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge


def trained(trainer: str = "megatron") -> CellEvidence:
    return evidence_for(replace(config_of("sft", pp=2), trainer=trainer))


def older(evidence: CellEvidence, version: str) -> None:
    """The records are those of a release that does not count packed tokens."""
    for record in evidence.records.values():
        record.counts_packed = False
        record.imports = [
            replace(one, version=version) if one.module == "megatron.core" else one for one in _proofs(record)
        ]
        for seen in record.reported:
            seen.packed_tokens = seen.packed_squares = None


def _proofs(record: Any) -> list[ImportProof]:
    found: list[ImportProof] = record.imports
    return found


def test_the_function_by_which_training_was_entered_is_required() -> None:
    evidence = trained()
    evidence.records[1].entry_point = "megatron.bridge.training.pretrain.pretrain"
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "entry_point is 'megatron.bridge.training.pretrain.pretrain', expected ''" in verdict.reason


@pytest.mark.parametrize("name", ["flops", "packed_tokens", "packed_squares"])
def test_a_number_that_the_release_counts_is_required(name: str) -> None:
    evidence = trained()
    setattr(evidence.records[1].reported[1], name, None)
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert f"record of rank 1: reported: step 1: {name} is None, and the trainer counts it" in verdict.reason


@pytest.mark.parametrize("data_path", ["scheduler", "sft_scheduler"])
def test_the_scheduler_counts_lengths_before_upstream_reports_them(data_path: str) -> None:
    evidence = evidence_for(replace(config_of(data_path, dp=2), trainer="megatron"))
    assert judge(evidence).outcome is Outcome.PASS
    for record in evidence.records.values():
        for seen in record.reported:
            seen.packed_tokens = seen.packed_squares = None
    assert judge(evidence).outcome is Outcome.PASS
    evidence.records[0].workloads.pop()
    verdict = judge(evidence)
    assert (verdict.outcome, "workloads: recorded for" in verdict.reason) == (Outcome.ERROR, True)


def test_a_release_that_is_known_to_count_must_do_so() -> None:
    evidence = trained()
    older(evidence, "0.19.2")
    verdict = judge(evidence)
    assert verdict.outcome is not Outcome.PASS
    evidence = trained()
    evidence.records[0].counts_packed = None
    assert "counts_packed is None, and the release counts packed tokens" in judge(evidence).reason


def test_a_release_that_is_known_not_to_count_must_not() -> None:
    evidence = trained()
    for record in evidence.records.values():
        record.imports = [replace(one, version="0.17.1") for one in record.imports]
    assert "counts_packed is True, and the release does not count packed tokens" in judge(evidence).reason


def test_counts_that_the_release_does_not_make_are_not_accepted() -> None:
    evidence = trained()
    evidence.records[0].counts_packed = False
    verdict = judge(evidence)
    assert verdict.outcome is not Outcome.PASS


def test_a_line_is_required_of_the_last_rank_alone() -> None:
    evidence = trained()
    evidence.records[1].reported[0].printed = None
    assert "record of rank 1: reported: step 0: printed is None, and a line is printed" in judge(evidence).reason
    evidence = trained()
    evidence.records[0].reported[0].printed = {"iteration": "1/2"}
    assert "and this rank prints none" in judge(evidence).reason


def test_other_trainers_count_nothing() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].counts_packed = False
    assert "counts_packed is False, and the trainer counts no FLOPs" in judge(evidence).reason
