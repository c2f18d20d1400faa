"""A small finished run with one cell of every outcome, and golden files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.outcomes import Rejection
from harness.core.run.provenance import Provenance
from harness.core.run.records import Failure
from harness.core.run.report import Report
from harness.core.run.run_plan import Expansion, RejectedCell, RunPlan, XFail
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.goldens import assert_golden
from tests.judge.checks.numerics.test_ended import cut_off
from tests.judge.reports import build_report
from tests.judge.simulator import TODAY, all_evidence, at, config_of, drop_params, refound, run_of

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    return lambda name, text: assert_golden(GOLDEN / name, text)


def _middle_stages_without_params(evidence: CellEvidence) -> None:
    for stage in (1, 2):
        for record in at(evidence, pp=stage):
            drop_params(record)


def _crash(evidence: CellEvidence) -> None:
    assert evidence.result is not None
    evidence.result.status = "failed"
    for record in evidence.records.values():
        cut_off(record, "raised")
        record.failure = Failure(type="RuntimeError", message="connection closed", traceback="tb", time=8.0)
    evidence.records[1].failure = Failure(
        type="RuntimeError", message="The size of tensor a (64) must match b (32)", traceback="Traceback: ...", time=5.0
    )


def broken_run() -> tuple[RunPlan, dict[str, CellEvidence]]:
    """A run of cells: clean, no metadata, wrong normalisation, crash, xfail, no records, rejected early and late."""
    configs = [
        config_of("reference", tp=2, pp=4),
        config_of("sft", tp=2, pp=4),
        config_of("sft", cp=2),
        config_of("sft", tp=2),
        config_of("sft", pp=2),
        config_of("reference", pp=2),
        config_of("sft", micro_batch_size=2),
    ]
    plan, evidence = run_of(configs)
    known = XFail(pattern="tp1-pp2-*", reason="loss off by one token", link="https://example.org/1")
    cells = [
        replace(
            cell,
            xfail=known if cell.id.startswith("tp1-pp2-cp1-sft") else None,
            line=None if cell.role == "control" else 10 + number,
        )
        for number, cell in enumerate(plan.expansion.cells)
    ]
    reason = "cp 2 needs every length to be a multiple of 2 x 2 = 4, but seq_length is 63 = 15 x 4 + 3"
    rejected = RejectedCell(
        id="tp1-pp1-cp2-sft-seq_length63-0badcafe",
        axes={"tp": 1, "pp": 1, "cp": 2, "packing": "sft"},
        rejections=(Rejection(rule="cp.divides", reason=reason, source="Megatron-Bridge ConfigContainer.validate"),),
    )
    plan = replace(plan, expansion=Expansion(cells=tuple(cells), rejected=(rejected,)))
    _, sft, scaled, crashed, expected, silent, late = (evidence[cell.id] for cell in cells[1:])
    _middle_stages_without_params(sft)
    for record in scaled.records.values():
        record.steps[0].grad_norm = 4.0
    _crash(crashed)
    expected.records[1].steps[0].documents[5].tokens -= 1
    silent.records, silent.result = {}, None
    assert late.result is not None
    late.records, late.result.status = {}, "rejected"
    late.result.rejection = Rejection(rule="stack.data_path", reason="megatron-core 0.16.1 has no SFT data path")
    found = {name: refound(item) for name, item in evidence.items()}
    return plan, all_evidence(plan, found)


@pytest.fixture
def broken_report() -> Report:
    plan, evidence = broken_run()
    return build_report(
        plan,
        evidence.values(),
        today=TODAY,
        timing={"wall_s": 12.25},
        provenance=Provenance(packages={"megatron-core": "0.19.2"}),
    )
