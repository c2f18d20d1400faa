"""Sample reports for the tests of every renderer of a report, built from real layouts and packing plans."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.cell.layout import Layout
from harness.core.cell.timing import GpuState
from harness.core.outcomes import Finding, KnownFailure, Lane, LaneVerdict, Outcome, Rejection, Severity
from harness.core.packing.documents import adversarial_mix
from harness.core.run.provenance import Provenance
from harness.core.run.report import (
    FailureView,
    LoadRate,
    LossCurve,
    RankView,
    Report,
    ReportCell,
    ReportRejected,
    Throughput,
    Weight,
)
from harness.core.tolerances import Bound, NoiseFloor

STEPS = 4
LAYERS = 4
_BOUND = Bound(value=1e-5, origin="fp32 layouts of megatron-core 0.16 to 0.19 on CPU agree to about 1e-7")
_NORM_BOUND = Bound(value=1e-4, origin=_BOUND.origin)
HOSTILE = "<script>alert('x')</script> & \"quoted\" {{ 7*7 }} \x1b[31m"
_TRACEBACK = """Traceback (most recent call last):
  File "harness/probe/legs/training.py", line 88, in train
    losses = forward_backward(forward_step_func=step, data_iterator=iterator, model=model)
  File "megatron/core/pipeline_parallel/schedules.py", line 2210, in forward_backward_pipelining_without_interleaving
    output_tensor, num_tokens = forward_step(forward_step_func, data_iterator, model, num_microbatches)
  File "megatron/core/models/common/embeddings/rope_utils.py", line 214, in _apply_rotary_pos_emb_thd
    seqlens = ((cu_seqlens[1:] - cu_seqlens[:-1]) // cp_size).tolist()
TypeError: 'NoneType' object is not subscriptable
"""
Lanes = dict[Lane, LaneVerdict]


def lanes(metadata: str = "pass", numerics: str = "pass", throughput: str = "skip") -> Lanes:
    return {
        Lane.METADATA: LaneVerdict(metadata),
        Lane.NUMERICS: LaneVerdict(numerics),
        Lane.THROUGHPUT: LaneVerdict(throughput),
    }


@dataclass(frozen=True)
class _Spec:
    layout: Layout
    path: str
    micro_batch_size: int = 1
    dtype: str = "fp32"
    stack: str = "default"

    @property
    def config(self) -> CellConfig:
        return CellConfig(
            layout=self.layout,
            data_path=self.path,
            micro_batch_size=self.micro_batch_size,
            dtype=self.dtype,
            stack=self.stack,
            documents=adversarial_mix(64, 2),
        )

    @property
    def axes(self) -> dict[str, Any]:
        sizes = {name: getattr(self.layout, name) for name in ("tp", "pp", "cp", "dp", "vpp", "sp")}
        rest = {"micro_batch_size": self.micro_batch_size, "packing": self.path, "dtype": self.dtype}
        return {**sizes, **rest, "stack": self.stack}


REFERENCE = cell_id(_Spec(Layout(), "unpacked").config)


def _ranks(config: CellConfig) -> list[RankView]:
    views = []
    for rank in range(config.layout.world_size):
        place = config.layout.coordinates(rank)
        params = config.micro_batches(0)[place.dp][0].params()
        views.append(
            RankView(
                rank=rank,
                place=place,
                state="ok" if params else "unpacked",
                cu_seqlens=list(params.cu_seqlens_q) if params else None,
                max_seqlen=params.max_seqlen_q if params else None,
                layers=list(config.layout.layers(LAYERS, place.pp)),
            )
        )
    return views


def _curve(name: str, steps: int, *, is_control: bool, norm_factor: float = 1.0) -> LossCurve:
    noise = random.Random(name)
    loss = [4.85 - 0.31 * step + 0.04 * step * step for step in range(steps)]
    norm = [2.1 + 0.2 * step for step in range(steps)]
    if is_control:
        return LossCurve(loss=loss, grad_norm=norm)
    drift = 3e-3 if norm_factor != 1.0 else 0.0
    seen = [value * (1 + noise.choice([0.0, 2e-8, 7e-8]) + drift * step) for step, value in enumerate(loss)]
    seen_norm = [value * norm_factor * (1 + noise.choice([0.0, 3e-7])) for value in norm]
    return LossCurve(
        loss=seen,
        control_loss=loss,
        grad_norm=seen_norm,
        control_grad_norm=norm,
        loss_bound=_BOUND,
        grad_norm_bound=_NORM_BOUND,
    )


def _throughput(spec: _Spec, name: str) -> Throughput:
    rate = 5200.0 / spec.layout.world_size * random.Random(name).uniform(0.8, 1.2)
    efficiency = 0.44 if spec.path == "unpacked" else 0.86
    return Throughput(
        real_tokens_per_s=rate * efficiency,
        slots_per_s=rate,
        efficiency=efficiency,
        tflops_per_s=rate * efficiency * 1.5e6 / 1e12,
        step_p50_s=0.031,
        step_p95_s=0.047,
        step_busy_s=0.029,
        packed_s=0.028,
        peak_memory_bytes=412 * 2**20,
        peak_reserved_bytes=640 * 2**20,
        memory_limit_bytes=139 * 2**30,
        mfu=rate * efficiency * 1.5e6 / 1e12 / 989.5,
        peak_tflops=989.5,
        peak_origin="H200 data sheet, SXM",
        warmup_rounds=3,
        gpu_states=[_STATE] if spec.path == "sft" else [],
        loads=[_load("packed", 0.021), _load("full", 0.024), _load("step", 0.009)] if spec.path == "sft" else [],
    )


_STATE = GpuState(
    when="before",
    sm_clock_mhz=1980,
    memory_clock_mhz=3201,
    power_w=412.0,
    power_limit_w=700.0,
    temperature_c=45,
    slowed_by=["software power cap"],
)


def _load(name: str, seconds: float) -> LoadRate:
    documents = 256 if name == "step" else 0
    rates = {"real_tokens_per_s": 350 / seconds, "slots_per_s": 400 / seconds, "tflops_per_s": 4.2e6 / seconds / 1e12}
    return LoadRate(load=name, documents=documents, seconds=seconds, mfu=0.413, **rates)


def _cell(spec: _Spec, steps: int = STEPS, **changes: Any) -> ReportCell:
    name = cell_id(spec.config)
    is_control = changes.get("role") == "control"
    base = ReportCell(
        id=name,
        axes=spec.axes,
        layout=spec.layout,
        outcome=Outcome.PASS,
        lanes=lanes(),
        findings=[],
        timing={
            "wall_s": 0.6 + 0.2 * spec.layout.world_size,
            "steps_s": 0.12 * spec.layout.world_size,
            "overhead_s": 0.5,
        },
        reproduce=f"harness run matrices/smoke.yaml --only {name}",
        group=f"documents-3f2a-{spec.dtype}",
        control=None if is_control else REFERENCE,
        throughput=_throughput(spec, name),
        curve=_curve(name, steps, is_control=is_control),
        ranks=_ranks(spec.config),
        canaries={
            "isolation": "ran" if spec.path != "unpacked" else "no micro-batch holds two documents",
            "padding": "ran",
        },
        evidence=Weight(
            records=spec.layout.world_size,
            legs=5 if spec.path != "unpacked" else 3,
            steps=steps,
            numbers=1415 * spec.layout.world_size,
            reference="" if is_control else "the oracle",
        ),
        line=None if is_control else 12,
    )
    return replace(base, **changes)


def _metadata_failure() -> ReportCell:
    """The middle stages' second TP rank never got cu_seqlens, then crashed in RoPE."""
    spec = _Spec(Layout(tp=2, pp=4, sp=True), "sft")
    cell = _cell(spec)
    ranks = [
        replace(view, state="missing", cu_seqlens=None, max_seqlen=None, ended="raised")
        if view.place.pp in (1, 2) and view.place.tp == 1
        else view
        for view in cell.ranks
    ]
    where = {"rank": 3, "stage": 1, "tp": 1, "cp": 0, "dp": 0, "layer": 2, "micro_batch": 0, "field": "cu_seqlens_q"}
    where |= {"leg": "metadata", "places": 4, "ranks": [3, 5], "stages": [1, 2], "layers": [2, 3]}
    findings = [
        Finding(
            lane=Lane.METADATA,
            check="params_present",
            message="no packed metadata reached this rank: PackedSeqParams is missing in 2 of 8 ranks",
            fault_class="A metadata: middle stages without cu_seqlens",
            where=where,
            measured=None,
            bound=[0, 1, 4, 23, 27, 46, 64],
        ),
        Finding(
            lane=Lane.METADATA,
            check="params_agree_ranks",
            message="cu_seqlens differs between tp 0 and tp 1 of stage 2",
            fault_class="A metadata: middle stages without cu_seqlens",
            where={**where, "rank": 5, "stage": 2, "layer": 3},
            measured=None,
            bound=[0, 1, 4, 23, 27, 46, 64],
        ),
        Finding(
            lane=Lane.NUMERICS,
            check="ended",
            message="rank 3 raised TypeError: 'NoneType' object is not subscriptable",
            where={"rank": 3, "leg": "training"},
        ),
    ]
    return replace(
        cell,
        outcome=Outcome.FAIL,
        lanes=lanes("fail", "fail"),
        findings=findings,
        ranks=ranks,
        curve=LossCurve(),
        throughput=Throughput(),
        failure=FailureView(
            rank=3,
            place=spec.layout.coordinates(3),
            ended="raised",
            message="TypeError: 'NoneType' object is not subscriptable",
            traceback=_TRACEBACK,
            log=f"cells/{cell.id}/attempt-1/log/rank-00003.log",
        ),
    )


def _numerics_failure() -> ReportCell:
    cell = _cell(_Spec(Layout(pp=2, cp=2), "reference"))
    findings = [
        Finding(
            lane=Lane.NUMERICS,
            check="grad_norm",
            message="gradient norm is 2.0000 times the control: within 2 % of cp = 2",
            fault_class="D gradient reduction",
            where={"step": 0},
            measured=4.2000003,
            bound={"value": 1e-4, "unit": "relative", "origin": _NORM_BOUND.origin, "control": 2.1},
        ),
        Finding(
            lane=Lane.NUMERICS,
            check="parameter_gradients",
            message="gradient of the first parameter that differs is twice the reference",
            fault_class="D gradient reduction",
            where={"stage": 0, "layer": 1, "parameter": "decoder.layers.1.self_attention.linear_qkv.weight"},
            measured=1.0,
            bound=1e-4,
        ),
        Finding(
            lane=Lane.NUMERICS,
            check="document_loss",
            severity=Severity.WARNING,
            message="document 4 and its copy differ in the last bits",
            where={"document": 4, "token": 17, "step": 0},
            measured=float("nan"),
            bound=1e-5,
        ),
    ]
    curve = _curve(cell.id, STEPS, is_control=False, norm_factor=2.0)
    return replace(cell, outcome=Outcome.FAIL, lanes=lanes("pass", "fail"), findings=findings, curve=curve)


def _known_failure() -> ReportCell:
    cell = _cell(_Spec(Layout(tp=2, cp=2, sp=True), "reference"))
    differs = [replace(view, state="differs", max_seqlen=-1093) if view.place.tp else view for view in cell.ranks]
    finding = Finding(
        lane=Lane.METADATA,
        check="params_agree_plan",
        message="max_seqlen is garbage on tp 1: an uninitialised broadcast buffer",
        fault_class="A metadata: max_seqlen wrong",
        where={"stage": 0, "tp": 1, "cp": 0, "field": "max_seqlen_q"},
        measured=-1093,
        bound=64,
    )
    reason = "fixed upstream in 0.18.2 (https://github.com/NVIDIA/Megatron-LM/issues/4092)"
    known = {"outcome": Outcome.XFAIL, "known": KnownFailure.EXPECTED, "reason": reason}
    return replace(cell, lanes=lanes("fail"), findings=[finding], ranks=differs, **known)


def _undecided() -> ReportCell:
    cell = _cell(_Spec(Layout(tp=2, pp=2, cp=2, sp=True), "sft"))
    lost = [replace(view, state="no-record", cu_seqlens=None, max_seqlen=None, ended="missing") for view in cell.ranks]
    return replace(
        cell,
        outcome=Outcome.ERROR,
        lanes=lanes("skip", "skip"),
        ranks=lost,
        curve=LossCurve(),
        throughput=Throughput(),
        attempts=2,
        evidence=Weight(),
        reason="node n17 was lost (NODE_FAIL) in both attempts; no rank left a record",
    )


def _rejected(spec: _Spec, rule: str, reason: str) -> ReportRejected:
    rejection = Rejection(rule=rule, reason=reason, source="Megatron-Bridge ConfigContainer.validate")
    return ReportRejected(
        id=cell_id(spec.config), axes=spec.axes, rule=rule, reason=reason, rejections=[rejection], line=21
    )


def _sample_cells() -> list[ReportCell]:
    passing = [
        _Spec(Layout(), "reference"),
        _Spec(Layout(), "sft"),
        _Spec(Layout(tp=2, sp=True), "sft"),
        _Spec(Layout(tp=2, pp=2, sp=True), "sft"),
        _Spec(Layout(pp=2, vpp=2), "reference"),
    ]
    flaky = _cell(_Spec(Layout(pp=2), "reference", micro_batch_size=2), outcome=Outcome.FLAKY, attempts=2)
    flaky = replace(flaky, reason="passed only on a retry")
    return [
        _cell(_Spec(Layout(), "unpacked"), role="control"),
        *(_cell(spec) for spec in passing),
        flaky,
        _metadata_failure(),
        _numerics_failure(),
        _known_failure(),
        _undecided(),
    ]


def _report(cells: list[ReportCell], rejected: list[ReportRejected]) -> Report:
    counts = {outcome: sum(cell.outcome is outcome for cell in cells) for outcome in Outcome}
    counts[Outcome.REJECTED] += len(rejected)
    failed = counts[Outcome.FAIL] > 0
    verdict = "fail" if failed else "error" if counts[Outcome.ERROR] else "pass"
    return Report(
        run_id="smoke-20260822T101530Z-3f2a",
        matrix="smoke",
        matrix_file="matrices/smoke.yaml",
        verdict=verdict,
        counts=counts,
        provenance=Provenance(
            harness="0.1.0",
            harness_commit="5744c7d0a1b2+changes",
            started="2026-08-22T10:15:30+00:00",
            host="ci-runner-7",
            system="Linux-6.1.0-x86_64-with-glibc2.36",
            cores=2,
            python="3.12.4",
            packages={"megatron-core": "0.19.2", "torch": "2.9.0+cpu", "transformer-engine": "not installed"},
            imports={"megatron.core.utils 0.19.2": ["lib/python3.12/site-packages/megatron/core/utils.py"]},
            devices=["cpu"],
            attention=["reference"],
            cpu_stubs=["thd_get_partitioned_indices: harness/runtime/device/cpu_stubs.py (no TransformerEngine)"],
        ),
        timing={"wall_s": 61.8, "training_s": 40.2, "judging_s": 0.8},
        noise={cells[0].id: {"document_loss": NoiseFloor(value=1.3e-3, by="documents in reverse order")}}
        if cells
        else {},
        cells=cells,
        rejected=rejected,
    )


def sample_report() -> Report:
    """A report with every outcome: 11 cells and 2 rejected ones."""
    rejected = [
        _rejected(
            _Spec(Layout(tp=2, cp=2, sp=True), "sft"),
            "cp-alignment",
            "seq_length 62 % (2 * cp) = 62 % 4 = 2, must be 0",
        ),
        _rejected(_Spec(Layout(tp=8, sp=True), "sft"), "kv-heads", "kv_heads 4 % tp 8 = 4, must be 0"),
    ]
    return _report(_sample_cells(), rejected)


def passing_report() -> Report:
    """A green run: the control and three cells that agree with it."""
    return _report(_sample_cells()[:4], [])


def big_report(cells: int = 100, steps: int = 50, *, failing: int | None = 7) -> Report:
    """`cells` cells of 8 ranks each in two parity groups; every `failing`-th one fails, none if None."""
    layouts = [
        Layout(tp=2, pp=2, cp=2, sp=True),
        Layout(tp=2, pp=4, sp=True),
        Layout(pp=4, cp=2),
        Layout(pp=2, dp=4),
        Layout(tp=4, pp=2, sp=True),
        Layout(tp=2, pp=2, dp=2, sp=True),
        Layout(pp=2, cp=2, dp=2, vpp=2),
    ]
    specs = [
        _Spec(layout, path, dtype=dtype, stack=f"core-{stack}")
        for stack in range(4)
        for dtype in ("fp32", "bf16")
        for layout in layouts
        for path in ("reference", "sft")
    ]
    failure = _metadata_failure()
    built = []
    for index, spec in enumerate(specs[:cells]):
        control = None if index in (0, 14) else cell_id(specs[0].config)
        cell = _cell(spec, steps, role="cell" if control else "control", control=control)
        if failing is not None and index % failing == failing - 1:
            ranks = [replace(view, state="missing", cu_seqlens=None) if view.place.pp else view for view in cell.ranks]
            changes = {"findings": failure.findings, "failure": failure.failure, "lanes": failure.lanes}
            cell = replace(cell, outcome=Outcome.FAIL, ranks=ranks, **changes)
        built.append(cell)
    return _report(built, [])


def hostile_report() -> Report:
    """A report in which every free text attacks renderers that do not escape it."""
    report = sample_report()
    finding = replace(report.cells[7].findings[0], message=HOSTILE, check=HOSTILE, fault_class=HOSTILE)
    failure = report.cells[7].failure
    assert failure is not None
    cell = replace(
        report.cells[7],
        id="tp2-<b>bold</b>",
        findings=[replace(finding, where={"parameter": HOSTILE}, measured=HOSTILE, bound={"value": HOSTILE})],
        failure=replace(failure, message=HOSTILE, traceback=HOSTILE + "\n\ud800", log=HOSTILE),
        reproduce=HOSTILE,
        axes={**report.cells[7].axes, "packing": HOSTILE},
        group=HOSTILE,
    )
    rejected = [replace(report.rejected[0], reason=HOSTILE, rule=HOSTILE)]
    provenance = Provenance(host=HOSTILE, packages={HOSTILE: HOSTILE}, cpu_stubs=[HOSTILE])
    return replace(report, matrix=HOSTILE, provenance=provenance, cells=[cell, *report.cells[:7]], rejected=rejected)
