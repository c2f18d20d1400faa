"""A simulated finished run on disk, for `harness report` and other commands to read without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.core.run.events import CellStarted, Launched, append_event
from harness.core.run.provenance import PlanProvenance
from harness.core.run.run_dir import RunDir
from tests.judge.simulator import config_of, run_of
from tests.judge.written import write_run


def simulated_run(parent: Path, name: str = "smoke-20260101T000000-abcd") -> RunDir:
    """Two cells and their control, all PASS."""
    plan, evidence = run_of([config_of("sft", tp=2), config_of("reference", pp=2)])
    named = replace(plan, run_id=name, provenance=PlanProvenance(started="2026-01-01T00:00:00+00:00"))
    run = write_run(parent / name, named, evidence)
    for cell in evidence:
        append_event(run.events, CellStarted(time=1.0, cell=cell, attempt=1, ranks=1))
    append_event(run.events, Launched(time=9.0, timing={"launch_s": 9.0, "import_s": 1.0}))
    return run
