from __future__ import annotations

import pytest

from harness.core.outcomes import Outcome
from harness.judge.checks import gradients
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding

SHARDED = "decoder.layers.0.self_attention.linear_qkv.weight"
WHOLE = "decoder.layers.0.input_layernorm.weight"


def cell(**layout: int) -> CellEvidence:
    return evidence_for(config_of("sft", **layout))


def count(evidence: CellEvidence, name: str, counted: bool | None, *ranks: int) -> None:
    for rank in ranks:
        for seen in evidence.records[rank].parameters:
            if seen.name == name:
                seen.in_norm = counted


def test_every_shard_and_one_of_all_copies_pass() -> None:
    assert judge(cell(tp=2, pp=2, cp=2, dp=2)).outcome is Outcome.PASS


def test_a_shard_that_is_left_out_names_its_rank() -> None:
    evidence = cell(tp=2, dp=2)
    count(evidence, SHARDED, False, 1, 3)
    finding = the_only_finding(evidence, "norm_members")
    assert finding.message == (
        f"upstream's gradient norm leaves out the shard of {SHARDED} on tp rank 1; counted wrongly: parameter {SHARDED}"
    )
    assert place_of(finding, "rank", "tp", "parameter", "step") == (1, 1, SHARDED, 0)
    assert (finding.measured, finding.fault_class) == (0.0, fault_classes.GRADIENT_NORM)


def test_a_parameter_that_no_copy_counts_is_left_out() -> None:
    evidence = cell(tp=2)
    count(evidence, WHOLE, False, 0)
    assert f"leaves out {WHOLE};" in the_only_finding(evidence, "norm_members").message


def test_copies_that_count_twice_are_named() -> None:
    evidence = cell(tp=2)
    count(evidence, WHOLE, True, 1)
    finding = the_only_finding(evidence, "norm_members")
    assert f"counts {WHOLE} 2 times, on ranks 0, 1;" in finding.message
    assert (finding.measured, finding.where["rank"]) == (2.0, 1)


@pytest.mark.parametrize(("layout", "rank"), [({"dp": 2}, 1), ({"cp": 2}, 1)])
def test_replicas_and_context_ranks_count_the_same(layout: dict[str, int], rank: int) -> None:
    evidence = cell(**layout)
    count(evidence, SHARDED, False, rank)
    finding = the_only_finding(evidence, "norm_members")
    assert f"counts {SHARDED} on rank 0 and not on its copy of another replica, {rank};" in finding.message


def test_a_rank_that_ended_before_its_first_update_leaves_the_count_open() -> None:
    evidence = cell(tp=2)
    ended = evidence.records[0]
    ended.steps.clear()
    for seen in ended.parameters:
        seen.in_norm = None
    assert gradients.norm_members(evidence) == []
    assert judge(evidence).outcome is Outcome.ERROR


def test_updates_without_what_the_norm_counts_are_missing_evidence() -> None:
    evidence = cell(tp=2)
    for record in evidence.records.values():
        for seen in record.parameters:
            seen.in_norm = None
    assert gradients.norm_members(evidence) == []
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "has no in_norm" in verdict.reason


def test_a_single_missing_value_is_missing_evidence() -> None:
    evidence = cell(tp=2)
    count(evidence, WHOLE, None, 0)
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert f"{WHOLE} has no in_norm" in verdict.reason
