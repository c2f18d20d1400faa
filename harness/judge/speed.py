"""How fast a cell was, for the report: measured rates, and the ratios of times that the throughput lane judges."""

from __future__ import annotations

import math
import statistics

from harness.judge.evidence import CellEvidence
from harness.judge.paired import paired_ratio
from harness.judge.report_model import Throughput, TimedRatio
from harness.judge.timings import Load, against_history, busy_step, documents_of, ratio_of, times_of, turns_of
from harness.words.flops import train_flops
from harness.words.tolerances import Bound


def throughput(evidence: CellEvidence) -> Throughput:
    """Medians over the steps after the first (it warms up); a step takes as long as its slowest rank.

    Rates are per rank: of all replicas / (world size x step time). Operations are those of
    real tokens alone (harness/words/flops.py).
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
    peak = max((record.peak_memory_bytes for record in evidence.records.values()), default=0) or None
    ratios = timed_ratios(evidence)
    rounds = rounds_of(evidence)
    if not times:
        return Throughput(peak_memory_bytes=peak, ratios=ratios, rounds_s=rounds)
    world = evidence.layout.world_size
    return Throughput(
        real_tokens_per_s=statistics.median(count / time / world for count, time in zip(real, times)),
        slots_per_s=statistics.median(count / time / world for count, time in zip(slots, times)),
        efficiency=sum(real) / sum(slots) if sum(slots) else None,
        tflops_per_s=statistics.median(count / time / world / 1e12 for count, time in zip(flops, times)),
        step_p50_s=statistics.median(times),
        step_p95_s=_percentile(times, 0.95),
        step_busy_s=busy_step(evidence),
        peak_memory_bytes=peak,
        ratios=ratios,
        step_times_s=times,
        rounds_s=rounds,
    )


def rounds_of(evidence: CellEvidence) -> dict[str, list[float]]:
    """Seconds of each round of the timing leg by load, to be held against those of another run of the same cell."""
    found = {}
    for (load, documents), rounds in times_of(evidence).items():
        name = f"{load}, {documents} documents" if documents else load
        found[name] = [rounds[number] for number in sorted(rounds)]
    return found


def _percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def timed_ratios(evidence: CellEvidence) -> list[TimedRatio]:
    """What the timing leg compared, whether it is judged slow or not."""
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
    pairs.append(("packed over unpacked", ("packed", 0), ("unpacked", 0), tolerances.packed_slower))
    compared = [(what, ratio_of(times, load, base), bound) for what, load, base, bound in pairs]
    if evidence.base is not None:
        what = f"over stack {evidence.base.cell.config.stack}, in turns"
        compared.append((what, paired_ratio(*turns_of(evidence)), tolerances.slower_than))
    found = _over_history(evidence)
    for what, ratio, bound in compared:
        if ratio is not None:
            found.append(
                TimedRatio(
                    what=what,
                    median=ratio.median,
                    low=ratio.low,
                    high=ratio.high,
                    rounds=ratio.rounds,
                    bound=bound,
                    verdict=ratio.verdict(bound.value),
                )
            )
    return found


def _over_history(evidence: CellEvidence) -> list[TimedRatio]:
    """A step over the median of earlier runs; the interval is over the slowest and the fastest of them."""
    compared, bound = against_history(evidence), evidence.tolerances.slower_than_history
    if compared is None:
        return []
    verdict = "slower" if compared.slower(bound.value) else "no difference"
    return [
        TimedRatio(
            what="over earlier runs",
            median=compared.ratio,
            low=compared.low,
            high=compared.high,
            rounds=len(compared.samples),
            bound=bound,
            verdict=verdict,
        )
    ]
