from __future__ import annotations

from typing import Any

import pytest

from harness.judge import fault_classes
from harness.words.records import SeenParams
from tests.judge.simulator import alter_params, at, config_of, evidence_for, place_of, the_only_finding


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("dtype", "torch.int64", "torch.int32"),
        ("max_seqlen_type", "Tensor", "int"),
        ("qkv_format", "sbhd", "thd"),
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


def test_two_dimensional_offsets() -> None:
    evidence = evidence_for(config_of("sft", tp=2))

    def unsqueeze(seen: SeenParams) -> None:
        assert seen.shape
        seen.shape = [1, *seen.shape]

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
