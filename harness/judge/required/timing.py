"""Required times: of every step and leg, of every load of the timing leg in every round, and of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.core.cell.timing import WARMUP, TimingConfig
from harness.core.run.records import RankRecord
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import on_gpu
from harness.judge.required.expected import Expected

_TURN = "turn"


def problems(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Problems of one completed rank."""
    for seen in record.steps:
        for name in ("time_s", "busy_s"):
            if not 0 <= getattr(seen, name) < math.inf:
                yield f"steps: step {seen.step}: {name} is {getattr(seen, name)!r}"
    for leg in record.legs:
        if not 0 <= leg.time_s < math.inf:
            yield f"legs: {leg.leg}: time_s is {leg.time_s!r}"
    if not record.setup_s < math.inf:
        yield f"setup_s is {record.setup_s!r}"
    timing = expected.config.timing
    if not timing.timed:
        if record.timings or record.untimed or record.warmup_rounds or record.gpu_states:
            yield "timings: present, though the cell is not timed"
        return
    kind = record.environment.get("torch_device", "cpu").partition(":")[0]
    if kind in WARMUP and record.warmup_rounds != timing.warmup_on(kind):  # another kind is a problem of `facts`
        yield f"warmup_rounds is {record.warmup_rounds}, not {timing.warmup_on(kind)}"
    yield from _rounds(record, timing, _loads(timing, record.rank == 0, set(record.untimed)))


def uncompared(evidence: CellEvidence) -> str:
    """Why times cannot be compared with earlier runs although the matrix asks for it; empty if nothing is damaged.

    Too few earlier runs are no damage: `slower_than_history` says so.
    """
    if evidence.history is None and evidence.before is None:
        return ""
    if evidence.before is None:
        return "baseline.json has no entry of this cell"
    if evidence.history is not None and evidence.before.runs != evidence.history.runs:
        return f"baseline.json says {evidence.before.runs} runs, plan.json {evidence.history.runs}"
    if on_gpu(evidence):
        return ""
    for step in list(evidence.steps)[1:]:
        for record, seen in evidence.step_records(step):
            if not seen.busy_s > 0:
                return f"record of rank {record.rank}: steps: step {step}: busy_s is {seen.busy_s!r}"
    return ""


def _loads(timing: TimingConfig, first: bool, untimed: set[str]) -> set[tuple[str, int]]:
    """(load, documents) that a rank times; only rank 0 times the rotary function."""
    names = ["rotary", "rotary_other"] if first else []
    loads = {(name, count) for name in [*names, "step"] for count in timing.documents}
    others = {name for name, requested in (("unpacked", timing.unpacked), ("full", timing.full_rows)) if requested}
    loads |= {(name, 0) for name in ({"packed"} if others - untimed else set()) | others}
    loads |= {(_TURN, 0)} if timing.turns else set()
    return {load for load in loads if load[0] not in untimed or load[0] == _TURN}


def _rounds(record: RankRecord, timing: TimingConfig, loads: set[tuple[str, int]]) -> Iterator[str]:
    """Problems unless every load ran in every round; turns may end early, with the other stack."""
    rounds: dict[tuple[str, int], list[int]] = {}
    for seen in record.timings:
        rounds.setdefault((seen.load, seen.documents), []).append(seen.round)
        if not 0 < seen.seconds < math.inf:
            yield f"timings: {seen.load} took {seen.seconds!r} s in round {seen.round}"
    cut = {(_TURN, 0)} if _TURN in record.untimed else set()
    if not loads - cut <= rounds.keys() <= loads:
        yield f"timings: recorded for {sorted(rounds)}, expected for {sorted(loads)}"
    for load, found in rounds.items():
        right = list(range(len(found) if load in cut else timing.rounds))
        if sorted(found) != right:
            yield f"timings: {load[0]} with {load[1]} documents has rounds {sorted(found)}, not {right}"
    for name, why in record.untimed.items():
        if not why:
            yield f"untimed: {name} has no reason"
