"""What only the launcher loads: the check, the rule and the notifier."""

from __future__ import annotations

from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Lane
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.table import Check
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.matrix.rules.rule import Rule

MAX_MICRO_BATCHES = 2  # of a step and rank


def fullness(evidence: CellEvidence) -> list[CheckFinding]:
    """Rows that hold too little need too many micro-batches."""
    for rank, record in sorted(evidence.records.items()):
        for step, count in enumerate(record.micro_batches):
            if evidence.cell.config.data_path == "example" and count > MAX_MICRO_BATCHES:
                message = f"{count} micro-batches in step {step}"
                where = {"rank": rank, "step": step}
                return [CheckFinding(message=message, where=where, measured=count, bound=MAX_MICRO_BATCHES)]
    return []


def one_stage(config: CellConfig) -> str | None:
    """The data path feeds one pipeline stage."""
    if config.data_path != "example" or config.layout.pp == 1:
        return None
    return f"pp is {config.layout.pp}, and packing example feeds one stage"


def write_file(target: str, verdict: str) -> None:
    """Write the verdict, as JSON, to a file: `--notify file:PATH`."""
    Path(target).write_text(verdict, encoding="utf-8")


FULLNESS = Check("example_fullness", Lane.METADATA, fullness)
ONE_STAGE = Rule("example.one-stage", "packing-example", one_stage)
