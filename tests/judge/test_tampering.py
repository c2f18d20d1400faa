"""Every change of a field in any file is detected, except in the fields listed with a reason."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from harness.app.pipeline.baselines import write_baselines
from harness.core.data_paths.forbidden import FORBIDDEN_CASES
from harness.core.outcomes import Outcome
from harness.core.run.cell_result import CellResult, RankEnding
from harness.core.run.records import Failure, Progress, Refusal
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import BaselineRequest, RunPlan
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.baseline import Baseline, Sample
from tests.judge.simulator import TRAIN, config_of, judge, run_of, with_oracle
from tests.judge.tampering import decisive, tamper, undone, unlisted, write_run
from tests.judge.timed import timed

CANARIES = ("isolation", "order", "determinism", "padding", "repetition", "truncation")
EACH = int(os.environ.get("HARNESS_TAMPER_EACH", "1"))
WHOLE = "HARNESS_TAMPER_EACH" in os.environ
IN_CODE = "megatron/core/transformer/attention.py:33 in forward"
Run = tuple[RunPlan, dict[str, CellEvidence]]
Baselines = Mapping[str, Baseline]


def under_test(evidence: Mapping[str, CellEvidence]) -> CellEvidence:
    return next(item for item in evidence.values() if item.cell.role == "cell")


def result_of(evidence: CellEvidence) -> CellResult:
    assert evidence.result is not None
    return evidence.result


def clean() -> Run:
    return run_of([config_of("reference", tp=2, pp=2, canaries=CANARIES)])


def nightly(seconds: float) -> tuple[Run, Baselines]:
    """A cell and its control that take `seconds` for a step, and ten earlier runs that took 0.1."""
    plan, evidence = run_of([config_of("reference", tp=2)])
    for item in evidence.values():
        for record in item.records.values():
            for step in record.steps:
                step.busy_s = seconds + 0.001 * record.rank
    samples = [
        Sample(run_id=f"night-{number}", started=f"2025-12-{20 - number}T03:00:00Z", seconds=0.1 + 0.0001 * number)
        for number in range(10)
    ]
    before = {cell: Baseline(runs=20, samples={"processor x 8": samples}) for cell in evidence}
    return (replace(plan, history=BaselineRequest(runs=20)), evidence), before


def computed() -> Run:
    """A cell and its control that are compared with the oracle."""
    plan, evidence = run_of([config_of("reference", tp=2, pp=2)])
    with_oracle(evidence)
    return plan, evidence


def with_timing() -> Run:
    """A cell with a timing leg, and its control."""
    cell = timed({("packed", 0): 0.1, ("unpacked", 0): 0.1}, jitter=0.01, tp=2)
    plan, evidence = run_of([cell.cell.config])
    under_test(evidence).records = cell.records
    return plan, evidence


def by_upstream() -> Run:
    """A cell that upstream's own trainer trains and evaluates, and its control."""
    return run_of([replace(config_of("sft", tp=2, pp=2), trainer="megatron", train=replace(TRAIN, eval_interval=1))])


def resumed() -> Run:
    """A cell that continues in the same layout, one that does in another, and their control."""
    train = replace(TRAIN, eval_interval=2)
    cell = replace(config_of("sft", tp=2, pp=2), trainer="megatron", train=train)
    return run_of([replace(cell, resume="same"), replace(cell, resume="tp4-pp1")])


def on_gpu() -> Run:
    """A cell on a GPU that asks for an attention kernel, and its control with the same."""
    plan, evidence = run_of([replace(config_of("reference", tp=2), attention="te", device="cuda")])
    cells = []
    for item in evidence.values():
        config = replace(item.cell.config, attention="te", device="cuda")
        item.cell, item.config = replace(item.cell, config=config), config
        cells.append(item.cell)
        for record in item.records.values():
            record.cpu_stubs = []
            record.environment |= {"device": "NVIDIA H200", "torch_device": "cuda:0", "backend": "nccl"}
            record.environment["attention"] = "Transformer Engine 2.20.2, te"
            for params in record.packed_params:
                for form in params.forms.values():
                    form.device = "cuda:0"
    return replace(plan, expansion=replace(plan.expansion, cells=tuple(cells))), evidence


def on_shared_gpu() -> Run:
    """The same over gloo, whose stubs the ranks list."""
    plan, evidence = on_gpu()
    for item in evidence.values():
        for record in item.records.values():
            record.environment["backend"] = "gloo"
            record.gloo_stubs = ["torch.distributed.ProcessGroup.send", "torch.distributed.ProcessGroup.recv"]
    return plan, evidence


def rules() -> Run:
    plan, evidence = run_of([replace(config_of("rules"), forbidden="offline-micro-batch-2")])
    case = FORBIDDEN_CASES["offline-micro-batch-2"]
    under_test(evidence).records[0].refusal = Refusal(
        validator=case.validator,
        wanted=case.pattern,
        type="AssertionError",
        message="Micro batch size should be 1 for packed sequences",
    )
    return plan, evidence


def cut_off(evidence: CellEvidence) -> None:
    """The ranks stop in step 1."""
    for record in evidence.records.values():
        record.progress = Progress(leg="training", step=1, phase="forward")
        record.steps, record.legs = record.steps[:1], []
    evidence.result = replace(result_of(evidence), status="failed", reason="2 of 2 ranks did not complete")


def hung() -> Run:
    plan, evidence = run_of([config_of("reference", tp=2)])
    cell = under_test(evidence)
    cut_off(cell)
    for record in cell.records.values():
        record.ended = "deadline"
    outer = "megatron/core/tensor_parallel/mappings.py:12 in _reduce"
    inner = "torch/distributed/distributed_c10d.py:2 in all_reduce"
    facts = {"ended": "deadline", "exit_code": -9, "still_s": 60.0}
    result_of(cell).ranks = [
        RankEnding(rank=0, hang="all_reduce", stack=[outer, inner], **facts),
        RankEnding(rank=1, stack=[IN_CODE], **facts),
    ]
    return plan, evidence


def slow() -> tuple[Run, Baselines]:
    return nightly(0.3)


def written(folder: Path, run: Run, before: Baselines | None = None) -> RunDir:
    directory = write_run(folder, *run)
    if before is not None:
        write_baselines(directory, dict(before))
    return directory


def retried(folder: Path, change: Callable[[CellEvidence], object]) -> tuple[RunDir, str]:
    """A run whose cell passed on its second attempt; `change`: of the first. Returns the cell too."""
    plan, evidence = run_of([config_of("reference", tp=2)])
    cell = under_test(evidence)
    run = write_run(folder, plan, evidence)
    first = replace(cell, records=copy.deepcopy(cell.records))
    cut_off(first)
    change(first)
    second = run.attempt(cell.cell.id, 2)
    write_json(second.config, cell.config)
    write_json(second.result, replace(result_of(cell), attempt=2))
    write_json(second.oracle, cell.oracle)
    for rank in cell.records:
        write_json(second.record(rank), replace(cell.records[rank], attempt=2))
        write_json(run.attempt(cell.cell.id).record(rank), first.records[rank])
    write_json(run.attempt(cell.cell.id).result, first.result)
    return run, cell.cell.id


def lost(first: CellEvidence) -> None:
    for record in first.records.values():
        record.ended = "running"
    result = result_of(first)
    result.status, result.reason = "error", "node 1 sent no heartbeats and wrote no result"
    result.ranks = [RankEnding(rank=rank, ended="killed") for rank in first.records]


def raised(first: CellEvidence) -> None:
    failure = Failure(
        type="AssertionError", message="wrong cu_seqlens", traceback="raised", time=101.0, frames=[IN_CODE]
    )
    first.records[0].ended = "killed"
    first.records[1].ended, first.records[1].failure = "raised", failure
    result_of(first).first_failure_rank = 1
    result_of(first).ranks = [
        RankEnding(rank=0, ended="killed", exit_code=-15),
        RankEnding(rank=1, ended="raised", exit_code=1),
    ]


def test_every_field_of_a_simulated_run_is_evidence_or_listed(tmp_path: Path) -> None:
    found = tamper(written(tmp_path, clean()), each=EACH)
    assert sum(found.tried.values()) > 1000
    assert not unlisted(found), unlisted(found)


def parts(*names: str) -> tuple[str, ...]:
    """How the patterns begin that are changed: those of which a kind of cell has more than the first run."""
    return ("",) if WHOLE else names


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (computed, ("oracle.", "record.parameters", "record.steps", "record.activations")),
        (with_timing, ("record.timings", "record.untimed", "record.warmup_rounds", "record.gpu_states", "config.")),
        (on_gpu, ("record.environment", "record.cpu_stubs", "record.packed_params.*.forms")),
        (on_shared_gpu, ("record.environment", "record.cpu_stubs", "record.gloo_stubs")),
        (by_upstream, ("record.reported", "record.legs", "config.")),
        pytest.param(
            resumed,
            ("record.states", "config.", "result.", "record.ended", "record.steps", "record.batches"),
            marks=pytest.mark.long,
        ),
        (rules, ("record.refusal", "record.environment", "config.")),
    ],
)
def test_every_field_of_other_kinds_of_cells_is_evidence_or_listed(
    make: Callable[[], Run], names: tuple[str, ...], tmp_path: Path
) -> None:
    found = tamper(written(tmp_path, make()), each=EACH, only=parts(*names))
    assert len(found.tried) > 8
    assert not unlisted(found), unlisted(found)


def test_every_field_of_a_run_that_is_compared_with_earlier_ones_is_evidence_or_listed(tmp_path: Path) -> None:
    names = parts("baseline.", "plan.history", "record.environment", "record.steps.*.busy_s")
    found = tamper(written(tmp_path, *nightly(0.1)), each=EACH, only=names)
    assert any(pattern.startswith("baseline.cells.") for pattern in found.tried)
    assert not unlisted(found), unlisted(found)


def test_every_field_of_the_attempt_that_passed_on_a_retry_is_evidence_or_listed(tmp_path: Path) -> None:
    run, _ = retried(tmp_path, lost)
    found = tamper(run, each=EACH, only=parts("result.", "config.", "record.run_id", "record.attempt", "record.ended"))
    assert not unlisted(found), unlisted(found)


def test_no_listed_field_decides_whether_a_cell_hangs(tmp_path: Path) -> None:
    run = hung()
    assert judge(under_test(run[1])).outcome is Outcome.FAIL
    assert decisive(written(tmp_path, run), each=EACH) == {}


def test_no_listed_field_decides_whether_a_cell_is_slower_than_before(tmp_path: Path) -> None:
    assert decisive(written(tmp_path, *slow()), each=EACH) == {}


def test_no_change_of_one_field_undoes_the_failure_of_an_earlier_attempt(tmp_path: Path) -> None:
    run, cell = retried(tmp_path, raised)
    fields = (
        "failure",
        "ended",
        "progress",
        "run_id",
        "attempt",
        "cell",
        "rank",
        "place",
        "schema_version",
        "steps.*.step",
    )
    names = parts("result.", "config.", *(f"record.{name}" for name in fields))
    assert undone(run, cell, each=EACH, only=names) == {}
