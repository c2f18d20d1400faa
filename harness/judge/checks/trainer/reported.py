"""What upstream's trainer reports of a step is what it did: its loss and gradient norm equal those that the harness
computed from the model's outputs and gradients; learning rate, loss scale and counters are what the cell asks for, and
what it counts of packed documents is what they are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from harness.core.cell.flops import flops_of
from harness.core.packing.arithmetic import WORKLOAD_ROUNDING
from harness.core.run.records import RankRecord, ReportedStep
from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.numerics.grad_norm import grad_norms
from harness.judge.checks.numerics.step_loss import step_losses
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import counted
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, stated


class _Metric(NamedTuple):
    """A reported number, and what it must be."""

    name: str
    reported: float | None
    right: float
    bound: Bound | None  # None: exact
    kind: str = fault_classes.REPORTED


_ROUNDING = Bound(value=WORKLOAD_ROUNDING, origin="exact but for the rounding of sums in float32")


def check(evidence: CellEvidence) -> list[CheckFinding]:
    """The first wrong step and rank of each metric."""
    if evidence.cell.config.own_trainer:
        return []
    computed = _Computed(evidence)
    wrong: dict[str, CheckFinding] = {}
    for record in evidence.records.values():
        for seen in record.reported:
            for metric in computed.metrics(seen, record.place.pp):
                if metric.name not in wrong and _differs(metric):
                    wrong[metric.name] = _finding(evidence, record, seen.step, metric)
    return list(wrong.values())


class _Computed:
    """What the harness computed of each step, or the cell's configuration sets."""

    def __init__(self, evidence: CellEvidence) -> None:
        self.evidence = evidence
        self.losses, self.norms = step_losses(evidence), grad_norms(evidence)
        self.tokens = {
            step: seen.token_count
            for step in evidence.finished_steps
            for _, seen in evidence.step_records(step, pp=evidence.last_stage)
        }
        samples = [len(evidence.cell.config.samples(step)) for step in range(len(evidence.plan))]
        self.consumed = list(itertools.accumulate(samples))
        packed = any(record.counts_packed for record in evidence.records.values())
        self.counted = {step: counted(evidence, step, packed) for step in evidence.steps}

    def metrics(self, seen: ReportedStep, stage: int) -> Iterator[_Metric]:
        """The metrics that a rank of this pipeline stage reports."""
        config, step = self.evidence.cell.config, seen.step
        loss, tokens = self.losses.get(step), self.tokens.get(step)
        if loss is not None and tokens and stage == self.evidence.last_stage:
            yield _Metric("loss", seen.loss, loss / tokens, self.evidence.own_bound("step_loss", step))
        if step in self.norms:
            yield _Metric("gradient norm", seen.grad_norm, self.norms[step], self.evidence.own_bound("grad_norm", step))
        yield _Metric("learning rate", seen.learning_rate, config.train.lr, None)
        yield _Metric("loss scale", seen.loss_scale, 1.0, None)
        yield _Metric("number of skipped steps", seen.skipped, 0, None)
        if step in self.counted:
            yield _Metric("number of consumed samples", seen.consumed_samples, self.consumed[step], None)
            yield from self._counters(seen)

    def _counters(self, seen: ReportedStep) -> Iterator[_Metric]:
        """Those that the rank reports; which must be there is a matter of judge/complete.py."""
        right = self.counted[seen.step]
        flops = flops_of(self.evidence.cell.config.model, right.tokens, right.squares)
        for name, found, number in (
            ("number of packed tokens", seen.packed_tokens, right.tokens),
            ("sum of squared lengths", seen.packed_squares, right.squares),
            ("number of floating-point operations", seen.flops, flops),
        ):
            if found is not None:
                yield _Metric(name, found, number, _ROUNDING, fault_classes.WORKLOAD)


def _differs(metric: _Metric) -> bool:
    found = metric.reported
    if found is None:
        return True
    if not math.isfinite(found):
        return False  # the check finiteness reports it
    if metric.bound is None:
        return found != metric.right
    return beyond(distance(found, metric.right, metric.bound), metric.bound)


def _finding(evidence: CellEvidence, record: RankRecord, step: int, metric: _Metric) -> CheckFinding:
    found, ratio, off = metric.reported, None, ""
    if found is not None and metric.bound is not None:
        if metric.right:
            screen = _ROUNDING.value if metric.bound is _ROUNDING else evidence.tolerances.ratio_screen
            ratio = ratio_name(found / metric.right, factors_of(evidence, step), screen)
        off = f", off by {distance(found, metric.right, metric.bound):.3g} > {bound_text(metric.bound)}"
    named = f"; the ratio is {ratio}" if ratio else ""
    counter = metric.kind == fault_classes.WORKLOAD
    return CheckFinding(
        fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio and not counter else metric.kind,
        message=f"reported {metric.name} of step {step} on rank {record.rank}: "
        f"{'none' if found is None else f'{found:.9g}'}, should be "
        f"{metric.right:.9g}{off}{named}",
        where={"stage": record.place.pp, "rank": record.rank, "step": step, "metric": metric.name}
        | ({"ratio": ratio} if ratio else {}),
        measured=found,
        bound=exactly(metric.right, "the cell's configuration") if metric.bound is None else stated(metric.bound),
    )
