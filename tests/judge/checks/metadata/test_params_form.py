from __future__ import annotations

from typing import Any

import pytest

from harness.core.run.records import SeenParams
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import alter_params, at, config_of, evidence_for, judge, place_of, the_only_finding


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_seqlen_type", "Tensor", "int"),
        ("qkv_format", "sbhd", "thd"),
        ("context_ranks", 2, 1),
    ],
)
def test_wrong_type_or_format(field: str, value: Any, expected: Any) -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))

    def change(seen: SeenParams) -> None:
        setattr(seen, field, value)

    [record] = at(evidence, pp=1, tp=1)
    alter_params(record, change)
    finding = the_only_finding(evidence, "params_form")
    assert place_of(finding, "stage", "tp", "field") == (1, 1, field)
    assert (finding.measured, finding.bound) == (value, expected)
    assert finding.fault_class == fault_classes.FORM


@pytest.mark.parametrize("tensor", ["cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"])
@pytest.mark.parametrize(
    ("field", "value", "expected"), [("dtype", "torch.int64", "torch.int32"), ("device", "cuda:1", "cpu")]
)
def test_dtype_and_device_of_every_tensor_are_judged(tensor: str, field: str, value: str, expected: str) -> None:
    evidence = evidence_for(config_of("reference", tp=2))

    def change(seen: SeenParams) -> None:
        setattr(seen.forms[tensor], field, value)

    [record] = at(evidence, tp=1)
    alter_params(record, change, micro_batch=1)
    finding = the_only_finding(evidence, "params_form")
    assert place_of(finding, "tp", "micro_batch", "field", "tensor") == (1, 1, field, tensor)
    assert (finding.measured, finding.bound) == (value, expected)
    assert f"{field} of {tensor} is {value}, expected {expected}" in finding.message


def test_devices_of_tensors_are_not_judged_if_the_rank_did_not_record_its_own() -> None:
    evidence = evidence_for(config_of("reference"))
    for record in evidence.records.values():
        record.environment.clear()
        for seen in record.packed_params:
            seen.forms["cu_seqlens_q"].device = "cuda:3"
    assert judge(evidence).findings == []


def test_offsets_without_values_are_on_a_wrong_device() -> None:
    evidence = evidence_for(config_of("sft"))
    for seen in evidence.records[0].packed_params:
        seen.cu_seqlens_q = None
        seen.forms["cu_seqlens_q"].device = "meta"
    finding = the_only_finding(evidence, "params_form")
    assert (finding.measured, finding.where["tensor"]) == ("meta", "cu_seqlens_q")


def test_two_dimensional_offsets() -> None:
    evidence = evidence_for(config_of("sft", tp=2))

    def unsqueeze(seen: SeenParams) -> None:
        for form in seen.forms.values():
            form.shape = [1, *form.shape]

    [record] = at(evidence, tp=1)
    alter_params(record, unsqueeze)
    finding = the_only_finding(evidence, "params_form")
    assert finding.measured[0] == 1 and len(finding.measured) == 2


def test_an_unpacked_run_must_not_have_params() -> None:
    evidence = evidence_for(config_of("unpacked", pp=2))
    [record] = at(evidence, pp=1)
    record.packed_params = [SeenParams(qkv_format="thd", cu_seqlens_q=[0, 64])]
    record.layers[0].params = 0
    finding = the_only_finding(evidence, "params_form")
    assert place_of(finding, "stage", "layer", "leg") == (1, 3, "training")
    assert finding.fault_class == fault_classes.PARAMS_UNPACKED
