"""Evidence of a cell with a timing leg, of invented but noisy times."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from harness.core.cell.timing import Timed, TimingConfig
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import Load
from tests.judge.simulator import config_of, evidence_for

TIMING = TimingConfig(documents=(4, 16, 64, 256), unpacked=True)


def timed(seconds: Mapping[Load, float], *, jitter: float = 0.1, rounds: int = 7, **layout: int) -> CellEvidence:
    """Evidence in which every rank takes about `seconds` for each load, with jitter from round to round."""
    names = {name for name, _ in seconds}
    timing = TimingConfig(
        documents=TIMING.documents if names & {"rotary", "step"} else (),
        unpacked="unpacked" in names,
        turns="pair" if "turn" in names else "",
        rounds=rounds,
    )
    evidence = evidence_for(replace(config_of("reference", **layout), timing=timing))
    generator = random.Random(3)
    for record in evidence.records.values():
        record.warmup_rounds = 1
        record.untimed = {"rotary_other": "it has no fused rotary function"} if timing.documents else {}
        record.timings = [
            Timed(load=name, documents=documents, round=number, seconds=median * generator.lognormvariate(0, jitter))
            for number in range(rounds)
            for (name, documents), median in seconds.items()
        ]
    return evidence


def slope(part: str, most: float, least: float = 0.1) -> dict[Load, float]:
    """Seconds that rise from `least` with 4 documents to `most` with 256."""
    return {(part, documents): least + (most - least) * (documents - 4) / 252 for documents in TIMING.documents}
