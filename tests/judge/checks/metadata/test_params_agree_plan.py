from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.packing.fields import OFFSETS, PADDED
from harness.core.packing.options import PackingOptions
from harness.core.run.records import SeenParams
from harness.judge.checks import packed_params
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.params_differences import ghosts, pairing
from tests.judge.simulator import alter_params, at, config_of, evidence_for, judge, place_of, the_only_finding


def test_a_garbage_max_seqlen_is_found() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))

    def garbage(seen: SeenParams) -> None:
        seen.max_seqlen_q = seen.max_seqlen_kv = 93824992231648

    for stage in (1, 2):
        for record in at(evidence, pp=stage, tp=1):
            alter_params(record, garbage)
    finding = the_only_finding(evidence, "params_agree_plan")
    assert place_of(finding, "stage", "tp", "micro_batch", "field") == (1, 1, 0, "max_seqlen_q")
    assert finding.where["ranks"] == [3, 5]
    assert finding.where["legs"] == ["metadata", "training"]
    assert finding.measured == 93824992231648
    assert finding.bound == evidence.plan[0][0][0].params.max_seqlen_q  # type: ignore[union-attr]
    assert finding.fault_class == fault_classes.MAX_SEQLEN


def test_offsets_that_do_not_reach_the_physical_length() -> None:
    evidence = evidence_for(config_of("sft", cp=2))

    def shorten(seen: SeenParams) -> None:
        assert seen.cu_seqlens_q and seen.cu_seqlens_kv
        seen.cu_seqlens_q[-1] = seen.cu_seqlens_kv[-1] = 59

    [record] = at(evidence, cp=1)
    alter_params(record, shorten, micro_batch=0)
    finding = the_only_finding(evidence, "params_agree_plan")
    assert place_of(finding, "cp", "micro_batch", "field") == (1, 0, "cu_seqlens_q")
    assert "ends at 59, not at the physical length 64" in finding.message
    assert "not a multiple of 4" in finding.message
    assert finding.fault_class == fault_classes.CU_SEQLENS


def test_lost_boundaries_are_not_the_offsets_of_a_row_with_one_document() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    rows = [truth.params.cu_seqlens_q for truth in evidence.plan[0][0] if truth.params is not None]
    assert (0, 64) in map(tuple, rows) and len(rows[0]) > 2

    def merge(seen: SeenParams) -> None:
        seen.cu_seqlens_q = seen.cu_seqlens_kv = [0, 64]
        for name in ("cu_seqlens_q", "cu_seqlens_kv"):
            seen.forms[name].shape = [2]

    [record] = at(evidence, tp=1)
    alter_params(record, merge, micro_batch=0)
    finding = the_only_finding(evidence, "params_agree_plan")
    assert finding.message.endswith("; the boundaries between documents are lost, so that they are one")
    assert finding.fault_class == fault_classes.CU_SEQLENS


def test_padded_offsets_beside_equal_plain_ones_are_allowed() -> None:
    evidence = evidence_for(config_of("sft", tp=2))

    def add_padded(seen: SeenParams) -> None:
        seen.cu_seqlens_q_padded, seen.cu_seqlens_kv_padded = seen.cu_seqlens_q, seen.cu_seqlens_kv

    for record in evidence.records.values():
        alter_params(record, add_padded)

    assert judge(evidence).findings == []


def test_wrong_padded_offsets_that_need_not_be_there_are_shown_with_the_right_ones() -> None:
    evidence = evidence_for(config_of("sft"))
    [record] = at(evidence)

    def padded(seen: SeenParams) -> None:
        assert seen.cu_seqlens_q is not None
        seen.cu_seqlens_q_padded = seen.cu_seqlens_kv_padded = [seen.cu_seqlens_q[0], 1, *seen.cu_seqlens_q[2:]]

    alter_params(record, padded, micro_batch=0)
    finding = next(one for one in judge(evidence).findings if one.check == "params_agree_plan")
    assert finding.where["field"] == "cu_seqlens_q_padded"
    params = evidence.plan[0][0][0].params
    assert params is not None and finding.bound == list(params.cu_seqlens_q)


def test_offsets_that_are_not_there_have_the_class_of_missing_params() -> None:
    """PackedSeqParams without cu_seqlens, as on tp rank 1 of middle stages with --sft in Megatron-LM 0.17.1."""
    evidence = evidence_for(config_of("sft", tp=2, pp=4))

    def empty(seen: SeenParams) -> None:
        seen.cu_seqlens_q = seen.cu_seqlens_kv = None

    for stage in (1, 2):
        for record in at(evidence, pp=stage, tp=1):
            alter_params(record, empty)
    finding = the_only_finding(evidence, "params_agree_plan")
    assert (finding.where["ranks"], finding.where["field"], finding.measured) == ([3, 5], "cu_seqlens_q", None)
    assert finding.fault_class == fault_classes.MIDDLE_STAGES


def _set(seen: SeenParams, values: dict[str, list[int]]) -> None:
    for name, offsets in values.items():
        setattr(seen, name, offsets)
        seen.forms[name].shape = [len(offsets)]


def test_empty_segments_of_the_plan_are_no_ghosts() -> None:
    offsets = [0, 3, 8, 8, 8]
    assert ghosts(offsets, offsets) == 0
    assert ghosts([*offsets, 8], offsets) == 1
    assert ghosts([0, 3, 3, 8, 8, 8], offsets) == 1
    assert ghosts([0, 4, 8, 8, 8, 8], offsets) == 0  # the other offsets are wrong too, which is reported instead


def test_a_segment_with_more_tokens_than_slots() -> None:
    evidence = evidence_for(config_of("reference", tp=2))

    def round_down(seen: SeenParams) -> None:
        assert seen.cu_seqlens_q and seen.cu_seqlens_q_padded
        down = [value // 2 * 2 for value in seen.cu_seqlens_q[:-1]] + seen.cu_seqlens_q_padded[-1:]
        _set(seen, {"cu_seqlens_q_padded": down, "cu_seqlens_kv_padded": down})

    [record] = at(evidence, tp=1)
    alter_params(record, round_down, micro_batch=0)
    finding = the_only_finding(evidence, "params_agree_plan")
    assert finding.where["field"] == "cu_seqlens_q_padded"
    assert "segment 0 has 1 real tokens in 0 slots" in finding.message


def test_padded_offsets_of_another_count() -> None:
    assert pairing([0, 3, 8], [0, 4, 8, 12]) == ["there are 2 real segments and 3 padded ones"]
    assert pairing([0, 3, 8], [0, 4, 12]) == []


def test_padded_offsets_alone_are_right_if_the_data_path_may_give_them_and_every_rank_does() -> None:
    evidence = evidence_for(config_of("bridge_in_batch", micro_batch_size=2, tp=2))
    for record in evidence.records.values():
        alter_params(record, padded_alone)
    assert judge(evidence).findings == []


def test_padded_offsets_alone_are_wrong_on_one_rank_of_several() -> None:
    evidence = evidence_for(config_of("bridge_in_batch", micro_batch_size=2, tp=2))
    alter_params(evidence.records[1], padded_alone)
    real, padded = judge(evidence).findings
    assert (real.where["field"], padded.where["field"]) == ("cu_seqlens_q", "cu_seqlens_q_padded")
    assert real.where["ranks"] == padded.where["ranks"] == [1]
    assert real.fault_class == fault_classes.REAL_PADDED


def padded_alone(params: SeenParams) -> None:
    params.cu_seqlens_q, params.cu_seqlens_kv = params.cu_seqlens_q_padded, params.cu_seqlens_kv_padded
    params.cu_seqlens_q_padded = params.cu_seqlens_kv_padded = None


def _one_copy_more(seen: SeenParams, fields: tuple[str, ...]) -> None:
    for field in fields:
        if offsets := getattr(seen, field):
            setattr(seen, field, [*offsets, offsets[-1]])


REAL, ALL = OFFSETS, OFFSETS + PADDED


@pytest.mark.parametrize(
    ("data_path", "fixed", "fields", "right"),
    [
        ("bridge_offline", False, ALL, True),
        ("bridge_offline", False, REAL, False),
        ("bridge_offline", True, ALL, False),
        ("reference", False, ALL, False),
    ],
    ids=["a release of Megatron-Bridge", "not of padded offsets", "a fixed number of entries", "another data path"],
)
def test_releases_of_megatron_bridge_may_repeat_the_last_offset(
    data_path: str, fixed: bool, fields: tuple[str, ...], right: bool
) -> None:
    options = replace(PackingOptions(), pad_to_max_length=True, pad_cu_seqlens=fixed, metadata=fixed)
    evidence = evidence_for(replace(config_of(data_path, cp=2), options=options))
    for record in evidence.records.values():
        alter_params(record, lambda seen: _one_copy_more(seen, fields))
    found = [finding.where["field"] for finding in packed_params.params_agree_plan(evidence)]
    assert (found == []) is right
