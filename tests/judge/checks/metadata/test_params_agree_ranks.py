from __future__ import annotations

from harness.core.run.records import SeenParams
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import alter_params, at, config_of, evidence_for, judge, place_of, the_only_finding


def test_padded_offsets_on_one_rank_only_are_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2, cp=2))

    def add_padded(seen: SeenParams) -> None:
        seen.cu_seqlens_q_padded = seen.cu_seqlens_q

    [record] = at(evidence, tp=1, pp=1, cp=1)
    alter_params(record, add_padded, micro_batch=1)
    finding = the_only_finding(evidence, "params_agree_ranks")
    assert place_of(finding, "stage", "tp", "cp", "micro_batch") == (1, 1, 1, 1)
    assert finding.where["ranks"] == [record.rank]
    assert finding.measured == ["cu_seqlens_q_padded"]
    assert finding.fault_class == fault_classes.RANKS_DIFFER


def test_ranks_of_different_replicas_may_differ() -> None:
    evidence = evidence_for(config_of("sft", tp=2, dp=2))

    def add_padded(seen: SeenParams) -> None:
        seen.cu_seqlens_q_padded = seen.cu_seqlens_q

    for record in at(evidence, dp=1):
        alter_params(record, add_padded)

    assert judge(evidence).findings == []
