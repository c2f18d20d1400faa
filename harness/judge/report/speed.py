"""The speed of a cell for the report: rates, and ratios of times, among them those that the throughput lane judges."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from harness.core.cell.flops import load_config, train_flops, work_of
from harness.core.hardware import PeakFound, mfu, peak_of
from harness.core.tolerances import Bound
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import (
    Load,
    Times,
    against_history,
    busy_step,
    documents_of,
    packed_pass,
    paired_times,
    ratio_of,
    times_of,
)
from harness.judge.failures.out_of_memory import memory_limit
from harness.judge.report.model import EARLIER_RUNS, NOT_JUDGED, LoadRate, Throughput, TimedRatio
from harness.judge.stats.paired import PairedRatio, paired_ratio

FULL_ROWS = "packed per real token over full rows per slot"
FULL_BOUND = Bound(
    value=1 / 0.9, unit="factor", origin=f"nine tenths of the tokens per second of full rows; {NOT_JUDGED}"
)
FUSION_BOUND = Bound(value=1.1, unit="factor", origin=f"shown, {NOT_JUDGED}")


def throughput(evidence: CellEvidence) -> Throughput:
    """Medians over the steps after the first (it warms up); a step takes as long as its slowest rank.

    Rates are per rank: of all replicas / (world size x step time). Operations are those on real tokens alone
    (harness/core/cell/flops.py).
    """
    times, real, slots, flops = [], [], [], []
    for step in list(evidence.steps)[1:]:
        seen = [item for _, item in evidence.step_records(step)]
        heads = [item for _, item in evidence.step_records(step, pp=0, tp=0, cp=0)]
        slowest = max((item.time_s for item in seen), default=0.0)
        if len(seen) < evidence.layout.world_size or slowest <= 0:
            continue
        times.append(slowest)
        real.append(sum(item.real_tokens for item in heads))
        slots.append(sum(item.slots for item in heads))
        config = evidence.cell.config
        flops.append(train_flops(config.model, (document.length for document in config.documents_of(step))))
    whole = _of_the_cell(evidence)
    if not times:
        return whole
    world = evidence.layout.world_size
    tflops = statistics.median(count / time / world / 1e12 for count, time in zip(flops, times))
    return replace(
        whole,
        real_tokens_per_s=statistics.median(count / time / world for count, time in zip(real, times)),
        slots_per_s=statistics.median(count / time / world for count, time in zip(slots, times)),
        efficiency=sum(real) / sum(slots) if sum(slots) else None,
        tflops_per_s=tflops,
        mfu=mfu(tflops, peak_for(evidence)),
        step_p50_s=statistics.median(times),
        step_p95_s=_percentile(times, 0.95) if len(times) > 1 else None,  # of one step it says nothing
        step_busy_s=busy_step(evidence),
        step_times_s=times,
    )


def _of_the_cell(evidence: CellEvidence) -> Throughput:
    """Figures that need no timed step: memory, the device and its peak, the timing leg."""
    records = list(evidence.records.values())
    peak = peak_for(evidence)
    first = evidence.records.get(0)
    return Throughput(
        peak_tflops=peak.tflops,
        peak_origin=peak.origin,
        peak_memory_bytes=max((record.peak_memory_bytes for record in records), default=0) or None,
        peak_reserved_bytes=max((record.peak_reserved_bytes or 0 for record in records), default=0) or None,
        memory_limit_bytes=memory_limit(records),
        warmup_rounds=max((record.warmup_rounds for record in records), default=0),
        gpu_states=first.gpu_states if first else [],
        loads=load_rates(evidence),
        ratios=timed_ratios(evidence),
        packed_s=packed_pass(evidence),
        rounds_s=rounds_of(evidence),
    )


def peak_for(evidence: CellEvidence) -> PeakFound:
    """The peak of the ranks' devices for the cell's dtype; unknown if the devices differ."""
    devices = sorted({record.environment.get("device", "") for record in evidence.records.values()})
    if len(devices) > 1:
        return PeakFound(tflops=None, origin=f"ranks ran on different devices: {', '.join(devices)}")
    return peak_of(devices[0] if devices else "", evidence.cell.config.dtype, evidence.peak_tflops)


def load_rates(evidence: CellEvidence) -> list[LoadRate]:
    """Rates of the loads of the timing leg that are passes of the model, from the medians of their rounds."""
    config, world, peak = evidence.cell.config, evidence.layout.world_size, peak_for(evidence)
    found = []
    for (load, documents), rounds in times_of(evidence).items():
        ran = load_config(config, load, documents)
        seconds = statistics.median(rounds.values())
        if ran is None or seconds <= 0:
            continue
        work = work_of(ran)
        tflops = work.flops / seconds / world / 1e12
        found.append(
            LoadRate(
                load=load,
                documents=documents,
                seconds=seconds,
                real_tokens_per_s=work.real_tokens / seconds / world,
                slots_per_s=work.slots / seconds / world,
                tflops_per_s=tflops,
                mfu=mfu(tflops, peak),
            )
        )
    return found


def rounds_of(evidence: CellEvidence) -> dict[str, list[float]]:
    """Seconds of each round of the timing leg by load, for comparison with another run of the same cell."""
    found = {}
    for (load, documents), rounds in times_of(evidence).items():
        name = f"{load}, {documents} documents" if documents else load
        found[name] = [rounds[number] for number in sorted(rounds)]
    return found


def _percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def timed_ratios(evidence: CellEvidence) -> list[TimedRatio]:
    """All comparisons of the timing leg, judged or not."""
    times, tolerances = times_of(evidence), evidence.tolerances
    pairs: list[tuple[str, Load, Load, Bound]] = []
    for part, title, bound in (
        ("rotary", "rotary function", tolerances.rotary_slope),
        ("step", "whole step", tolerances.segment_slope),
    ):
        documents = documents_of(times, part)
        if len(documents) > 1:
            most, least = documents[-1], documents[0]
            pairs.append((f"{title}, {most} documents over {least}", (part, most), (part, least), bound))
    pairs += _fused(evidence, documents_of(times, "rotary_other"))
    pairs.append(("packed over unpacked", ("packed", 0), ("unpacked", 0), tolerances.packed_slower))
    compared = [(what, ratio_of(times, load, base), bound) for what, load, base, bound in pairs]
    compared.append((FULL_ROWS, _over_full_rows(evidence, times), FULL_BOUND))
    if evidence.base is not None:
        what = f"over stack {evidence.base.cell.config.stack}, interleaved"
        compared.append((what, paired_ratio(*paired_times(evidence)), tolerances.slower_than))
    shown = [_shown(what, ratio, bound) for what, ratio, bound in compared if ratio is not None]
    return [*_over_history(evidence), *shown]


def _shown(what: str, ratio: PairedRatio, bound: Bound) -> TimedRatio:
    return TimedRatio(
        what=what,
        median=ratio.median,
        low=ratio.low,
        high=ratio.high,
        rounds=ratio.rounds,
        bound=bound,
        verdict=ratio.verdict(bound.value),
    )


def _fused(evidence: CellEvidence, documents: list[int]) -> list[tuple[str, Load, Load, Bound]]:
    """The rotary function unfused over fused, with the fewest and the most documents."""
    own, other = "rotary", "rotary_other"
    unfused, fused = (other, own) if evidence.cell.config.model.rope_fusion else (own, other)
    return [
        (f"rotary function, unfused over fused, {count} documents", (unfused, count), (fused, count), FUSION_BOUND)
        for count in dict.fromkeys([*documents[:1], *documents[-1:]])
    ]


def _over_full_rows(evidence: CellEvidence, times: Times) -> PairedRatio | None:
    """Time for a real token of packed rows over time for a slot of full rows."""
    ratio, config = ratio_of(times, ("packed", 0), ("full", 0)), evidence.cell.config
    full = load_config(config, "full", 0) if ratio else None
    if ratio is None or full is None:
        return None
    return ratio.times(work_of(full).slots / work_of(config).real_tokens)


def _over_history(evidence: CellEvidence) -> list[TimedRatio]:
    """A step over the median of earlier runs; the interval is over their slowest and fastest."""
    compared, bound = against_history(evidence), evidence.tolerances.slower_than_history
    if compared is None:
        return []
    verdict = "slower" if compared.slower(bound.value) else "no difference"
    return [
        TimedRatio(
            what=EARLIER_RUNS,
            median=compared.ratio,
            low=compared.low,
            high=compared.high,
            rounds=len(compared.samples),
            bound=bound,
            verdict=verdict,
        )
    ]
