"""No field of any file can be changed without being noticed, but for those that are listed with a reason."""

from __future__ import annotations

from pathlib import Path

from harness.edge.run_dir import RunDir, write_json
from harness.judge.required.not_evidence import NOT_EVIDENCE
from harness.words.run_plan import RunPlan, sealed
from tests.judge.simulator import config_of, run_of
from tests.judge.tampering import listed, tamper


def write_run(root: Path, plan: RunPlan, evidence: dict[str, object]) -> RunDir:
    """A simulated run as a real one leaves it."""
    run = RunDir(root)
    write_json(run.plan, sealed(plan))
    for name, item in evidence.items():
        attempt = run.attempt(name)
        write_json(attempt.config, item.config)
        write_json(attempt.result, item.result)
        for rank, record in item.records.items():
            write_json(attempt.record(rank), record)
    return run


def test_every_field_of_a_simulated_run_is_evidence_or_listed(tmp_path: Path) -> None:
    canaries = ("isolation", "order", "determinism", "padding", "rewriting", "repetition")
    plan, evidence = run_of([config_of("reference", tp=2, pp=2, canaries=canaries)])
    found = tamper(write_run(tmp_path, plan, evidence))
    print(sum(found.tried.values()), listed(found))
    assert set(found.passed) <= set(NOT_EVIDENCE), listed(found)
