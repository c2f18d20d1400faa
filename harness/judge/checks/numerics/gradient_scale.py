"""The number of tokens that the loss returns is the plan's, and gradients, also of experts, are divided by it (step 0).

Without a loss per token they are averaged over replicas and context ranks. Nothing is compared with the control, which
runs the same code.
"""

from __future__ import annotations

import math

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name, stated_ratio
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import counted_tokens
from harness.judge.locations import where_of
from harness.judge.stats.distance import exactly

_ROUNDING = 2.0**-8  # of gradients in bf16


def check(evidence: CellEvidence) -> list[CheckFinding]:
    for step in evidence.finished_steps:
        if findings := _returned(evidence, step):
            return findings
    return _scales(evidence) if evidence.first_step_whole else []


def _totals(evidence: CellEvidence, step: int) -> list[float | None]:
    """Per tp rank: what the losses of a step returned, over replicas and context ranks; None if none returned any."""
    totals: list[float | None] = []
    for tp in range(evidence.layout.tp):
        found = [seen.returned_tokens for _, seen in evidence.step_records(step, pp=evidence.last_stage, tp=tp)]
        counts = [count for count in found if count is not None]
        totals.append(sum(counts) if counts else None)
    return totals


def _returned(evidence: CellEvidence, step: int) -> list[CheckFinding]:
    config = evidence.cell.config
    right = counted_tokens(evidence, step) * (config.layout.cp if config.path.loss_on_every_context_rank else 1)
    for tp, found in enumerate(_totals(evidence, step)):
        if found is None and (config.path.counted != "labels" or config.trainer == "skyrl"):
            continue  # a loss that is divided before it is returned
        if found == right and config.path.counted:
            continue
        name = ratio_name(found / right, factors_of(evidence, step), screen=0.0) if found and right else None
        number = "no number of tokens" if found is None else f"{found:g} tokens"
        wanted = f"{right:g} by the packing plan" if config.path.counted else "none, since it is divided already"
        return [
            CheckFinding(
                fault_class=f"{fault_classes.NORMALISATION}: {name}" if name else fault_classes.TOKEN_COUNT,
                message=f"the losses of step {step} return {number} on all ranks, expected {wanted}"
                + (f"; the ratio is {name}" if name else ""),
                where={"stage": evidence.last_stage, "tp": tp, "step": step} | ({"ratio": name} if name else {}),
                measured=found,
                bound=exactly(right, "the packing plan"),
            )
        ]
    return []


def _scales(evidence: CellEvidence) -> list[CheckFinding]:
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
    counted = _totals(evidence, 0)[0]
    if not counted:
        return 1.0, "since the loss returns no number of tokens"
    return 1.0 / counted, f"one over the {counted:g} tokens that the loss returned"
