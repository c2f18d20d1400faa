"""Simulated evidence written to disk as the supervisor of a real run does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.core.run.records import CellResult, sealed
from harness.core.run.run_dir import AttemptDir, RunDir, digest_of, text_of, write_atomic, write_json
from harness.core.run.run_plan import RunPlan, sealed_text
from harness.core.serialization import from_jsonable, loads
from harness.judge.evidence.cell_evidence import CellEvidence


def write_run(root: Path, plan: RunPlan, evidence: Mapping[str, CellEvidence]) -> RunDir:
    """Write plan.json and the first attempt of every cell; records get the id of the plan's run."""
    run = RunDir(root)
    write_atomic(run.plan, sealed_text(plan))
    for name, item in evidence.items():
        write_attempt(run.attempt(name), item, plan.run_id)
    return run


def write_attempt(attempt: AttemptDir, item: CellEvidence, run_id: str) -> None:
    """Write the files that the evidence has, result.json last, with the digests of the others."""
    if item.config is not None:
        write_json(attempt.config, item.config)
    for rank, record in item.records.items():
        write_json(attempt.record(rank), replace(record, run_id=run_id))
    if item.oracle is not None:
        write_json(attempt.oracle, item.oracle)
    if item.resumed is not None:
        write_attempt(attempt.resumed, item.resumed, run_id)
    if item.result is not None:
        write_json(attempt.result, item.result)
        seal(attempt)


def seal(attempt: AttemptDir) -> None:
    """Put the digests of the records as they are now into result.json."""
    result = from_jsonable(CellResult, loads(text_of(attempt.result)))
    paths = {ending.rank: attempt.record(ending.rank) for ending in result.ranks}
    digests = {rank: digest_of(path) for rank, path in paths.items() if path.exists()}
    result.ranks = [replace(ending, digest=digests.get(ending.rank, "")) for ending in result.ranks]
    result.oracle = digest_of(attempt.oracle) if attempt.oracle.exists() else ""
    write_json(attempt.result, sealed(result))
