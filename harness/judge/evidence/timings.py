"""The times of a cell, combined over its ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.baseline import Comparison, Sample, compare, hardware_text
from harness.judge.stats.paired import PairedRatio, paired_ratio

Load = tuple[str, int]  # name, documents per pack
Times = dict[Load, dict[int, float]]  # load -> round -> seconds
TURN: Load = ("turn", 0)
PACKED: Load = ("packed", 0)


def times_of(evidence: CellEvidence) -> Times:
    """Return load -> round -> seconds of the slowest rank; loads sorted by name and number of documents."""
    times: Times = {}
    for record in evidence.records.values():
        for timing in record.timings:
            rounds = times.setdefault((timing.load, timing.documents), {})
            rounds[timing.round] = max(timing.seconds, rounds.get(timing.round, 0.0))
    return dict(sorted(times.items()))


def ratio_of(times: Times, load: Load, base: Load) -> PairedRatio | None:
    """Return the paired ratio of two loads over the rounds that both have; None if there are none."""
    over, under = times.get(load, {}), times.get(base, {})
    rounds = sorted(over.keys() & under.keys())
    return paired_ratio([over[number] for number in rounds], [under[number] for number in rounds])


def paired_times(evidence: CellEvidence) -> tuple[list[float], list[float]]:
    """Return times of this cell and of its base, of the rounds that both ran interleaved.

    Attempts of different numbers never are: each takes turns with the same attempt of the other cell.
    """
    if evidence.base is None or evidence.attempt != evidence.base.attempt:
        return [], []
    ours, theirs = (times_of(side).get(TURN, {}) for side in (evidence, evidence.base))
    rounds = sorted(ours.keys() & theirs.keys())
    return [ours[number] for number in rounds], [theirs[number] for number in rounds]


def busy_step(evidence: CellEvidence) -> float | None:
    """Return the median busy time of a step's slowest rank, in seconds; without the first step, which warms up."""
    times = []
    for step in list(evidence.steps)[1:]:
        busy_times = [recorded.busy_s for _, recorded in evidence.step_records(step)]
        if len(busy_times) == evidence.layout.world_size and min(busy_times) > 0:
            times.append(max(busy_times))
    return statistics.median(times) if times else None


def packed_pass(evidence: CellEvidence) -> float | None:
    """Return the median seconds of the timing leg's pass over the documents as the data path packs them."""
    rounds = times_of(evidence).get(PACKED, {})
    return statistics.median(rounds.values()) if rounds else None


def on_gpu(evidence: CellEvidence) -> bool:
    """Return whether any rank computed on a GPU."""
    return any(record.environment.get("device", "cpu") != "cpu" for record in evidence.records.values())


def compared_seconds(evidence: CellEvidence) -> float | None:
    """Return the seconds compared between runs: on a CPU a training step's busy time, on a GPU the timing leg's pass.

    A training step on a GPU is timed by the host alone, which also waits for the file system and reads tensors back.
    """
    return packed_pass(evidence) if on_gpu(evidence) else busy_step(evidence)


def samples_before(evidence: CellEvidence) -> list[Sample]:
    """Return earlier green runs on this cell's hardware, the newest first."""
    if evidence.before is None:
        return []
    environments = [record.environment for record in evidence.records.values()]
    devices = sorted({environment["device"] for environment in environments if "device" in environment})
    processors = sorted({environment["processor"] for environment in environments if "processor" in environment})
    return evidence.before.samples.get(hardware_text(devices, processors), [])[: evidence.before.runs]


def against_history(evidence: CellEvidence) -> Comparison | None:
    """Return the comparison with earlier runs; None if nothing was timed, none is asked for, or there are too few."""
    seconds = compared_seconds(evidence)
    return None if seconds is None else compare(seconds, samples_before(evidence))


def documents_of(times: Iterable[Load], name: str) -> list[int]:
    """Return documents per pack of the loads of one name, ascending."""
    return sorted(documents for load, documents in times if load == name)
