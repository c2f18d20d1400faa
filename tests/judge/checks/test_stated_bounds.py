"""Every finding of the numerics lane states the measured value, the bound and the origin of the bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from harness.core.outcomes import Lane
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.numerics.test_ended import cut_off
from tests.judge.simulator import config_of, evidence_for, judge


def _crash(evidence: CellEvidence) -> None:
    for record in evidence.records.values():
        cut_off(record, "raised")
    assert evidence.result is not None
    evidence.result.status = "failed"


def _not_finite(evidence: CellEvidence) -> None:
    evidence.records[0].steps[0].grad_norm = float("nan")


def _tokens(evidence: CellEvidence) -> None:
    evidence.records[0].steps[0].documents[3].tokens += 1


def _losses(evidence: CellEvidence) -> None:
    for record in evidence.records.values():
        for loss in record.steps[0].documents.values():
            loss.loss_sum *= 1.1
        record.steps[1].loss_sum = 1.0


def _copy(evidence: CellEvidence) -> None:
    evidence.records[0].steps[0].documents[4].loss_sum += 1.0


def _activations(evidence: CellEvidence) -> None:
    for seen in evidence.records[0].activations:
        seen.documents[2].projections[0] += 1.0


def _gradients(evidence: CellEvidence) -> None:
    for record in evidence.records.values():
        record.steps[0].grad_norm = 9.0
        record.parameters[1].gradient.norm_sq *= 2


def _replica(evidence: CellEvidence) -> None:
    evidence.records[1].parameters[-2].gradient.norm_sq *= 2


BREAKS: dict[str, Callable[[CellEvidence], None]] = {
    "ended": _crash,
    "finiteness": _not_finite,
    "token_count": _tokens,
    "document_loss": _losses,
    "step_loss": _losses,
    "repeated_document": _copy,
    "activations": _activations,
    "parameter_gradients": _gradients,
    "grad_norm": _gradients,
    "replica_gradients": _replica,
}


@pytest.mark.parametrize("name", BREAKS)
def test_measured_bound_and_origin_are_there(name: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    BREAKS[name](evidence)
    findings = [finding for finding in judge(evidence).findings if finding.lane is Lane.NUMERICS]
    assert name in {finding.check for finding in findings}
    for finding in findings:
        assert finding.measured is not None, finding
        assert isinstance(finding.bound, Mapping), finding
        assert finding.bound["origin"], finding
        if not str(finding.bound["origin"]).startswith("exact: "):
            assert f"{finding.bound['value']:.3g} {finding.bound['unit']}" in finding.message
            assert str(finding.bound["origin"]) in finding.message
