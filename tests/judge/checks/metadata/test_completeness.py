from __future__ import annotations

from harness.core.outcomes import Lane, LaneVerdict, Outcome, Severity
from harness.core.run.records import Failure, Progress
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import config_of, evidence_for, judge, place_of


def test_a_data_path_that_raises_while_it_returns_batches_fails_metadata() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    for record in evidence.records.values():
        record.ended = "raised"
        record.progress = Progress(leg="metadata", micro_batch=1, phase="fetch")
        record.failure = Failure(type="RuntimeError", message="peer is gone", traceback="", time=20.0)
        record.batches, record.layers, record.steps = record.batches[:1], [], []
        record.parameters, record.activations = [], []
    evidence.records[3].failure = Failure(type="RuntimeError", message="size 8 vs 4", traceback="tb", time=10.0)
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.lanes[Lane.METADATA] is LaneVerdict.FAIL
    assert verdict.lanes[Lane.NUMERICS] is LaneVerdict.SKIP
    [finding] = verdict.findings
    assert finding.check == "completeness"
    assert place_of(finding, "rank", "stage", "tp", "leg", "micro_batch") == (3, 1, 1, "metadata", 1)
    assert "size 8 vs 4" in finding.message and "ranks 0, 1, 2 did not complete" in finding.message
    assert finding.fault_class == fault_classes.CRASH


def test_a_missing_record_is_infrastructure() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    del evidence.records[1]
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "rank 1" in verdict.reason and "left no record" in verdict.reason
    [finding] = verdict.findings
    assert (finding.check, finding.severity) == ("completeness", Severity.WARNING)
    assert verdict.lanes[Lane.METADATA] is LaneVerdict.SKIP
