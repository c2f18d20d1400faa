"""Gradients, also of experts, are divided by the number of tokens that the loss returned (step 0).

Without a loss per token they are averaged over replicas and context ranks. Nothing is compared with the control, which
runs the same code.
"""

from __future__ import annotations

import math

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name, stated_ratio
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import returned_tokens
from harness.judge.locations import where_of
from harness.judge.stats.distance import exactly

_ROUNDING = 2.0**-8  # of gradients in bf16


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if not evidence.first_step_whole:
        return []
    right, why = _asked(evidence)
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for seen in record.gradient_scales:
            for kind, found in (("gradients", seen.dense), ("gradients of experts", seen.experts)):
                if found is None or not math.isfinite(found) or abs(found / right - 1) <= _ROUNDING:
                    continue
                name = ratio_name(found / right, factors_of(evidence, 0), evidence.tolerances.ratio_screen)
                where = where_of(record.place, rank=rank, step=0, chunk=seen.chunk)
                return [
                    CheckFinding(
                        fault_class=f"{fault_classes.NORMALISATION}: {name}"
                        if name
                        else fault_classes.GRADIENT_REDUCTION,
                        message=f"{kind} on rank {rank} ({record.place}) are multiplied by {found:.6g}, expected "
                        f"{right:.6g}, {why}; {stated_ratio(name or found / right).rstrip(';')}",
                        where=where | ({"ratio": name} if name else {}),
                        measured=found,
                        bound=exactly(right, why),
                    )
                ]
    return []


def _asked(evidence: CellEvidence) -> tuple[float, str]:
    """The factor that the loss asks for, and why."""
    layout, config = evidence.layout, evidence.cell.config
    # SkyRL's trainer scales the loss mask instead.
    if config.trainer == "skyrl" or not config.options.calculate_per_token_loss:
        return 1.0 / (layout.dp * layout.cp), "the mean over replicas and context ranks"
    returned = returned_tokens(evidence, 0)[0]
    if not returned:
        return 1.0, "since the loss returns no number of tokens"
    return 1.0 / returned, f"one over the {returned:g} tokens that the loss returned"
