from __future__ import annotations

import pytest

from harness.core.outcomes import Outcome, Severity
from harness.core.run.records import SeenParams
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import alter_params, at, config_of, evidence_for, judge, place_of


def _copied(seen: SeenParams) -> None:
    """Make the padded offsets another tensor, equal or not."""
    seen.forms["cu_seqlens_q_padded"].same_as = None
    seen.forms["cu_seqlens_kv_padded"].same_as = "cu_seqlens_q_padded"


def _evidence(**layout: int) -> CellEvidence:
    return evidence_for(config_of("reference", **layout))


def test_the_same_tensors_pass() -> None:
    assert judge(_evidence()).findings == []


def test_a_copy_of_the_offsets_is_a_warning_with_its_place() -> None:
    evidence = _evidence()
    alter_params(evidence.records[0], _copied, micro_batch=1)
    verdict = judge(evidence)
    [finding] = verdict.findings
    assert verdict.outcome is Outcome.PASS
    assert (finding.check, finding.severity) == ("params_identity", Severity.WARNING)
    assert place_of(finding, "stage", "micro_batch", "field") == (0, 1, "cu_seqlens_q_padded")


@pytest.mark.parametrize("padding", [True, False])
def test_copies_are_allowed_where_pad_between_seqs_is_set(padding: bool) -> None:
    evidence = _evidence()

    def set_padding(seen: SeenParams) -> None:
        _copied(seen)
        seen.pad_between_seqs = padding

    alter_params(evidence.records[0], set_padding)
    assert judge(evidence).findings == []


def test_offsets_that_differ_are_two_tensors() -> None:
    evidence = _evidence(tp=2)  # documents are padded to two tokens
    [record] = at(evidence, tp=1)
    alter_params(record, _copied)
    assert judge(evidence).findings == []


def test_a_copy_for_kv_alone_is_enough() -> None:
    evidence = _evidence()

    def copy_kv(seen: SeenParams) -> None:
        seen.forms["cu_seqlens_kv_padded"].same_as = None

    alter_params(evidence.records[0], copy_kv)
    assert [finding.check for finding in judge(evidence).findings] == ["params_identity"]
