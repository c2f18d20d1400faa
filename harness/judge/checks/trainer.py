"""Upstream's own trainer: what it reports and prints, its evaluations, and how it continues from a checkpoint."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.core.cell.config import CellConfig
from harness.core.cell.flops import flops_of
from harness.core.cell.reports import LOSS, logged
from harness.core.outcomes import Lane
from harness.core.packing.arithmetic import WORKLOAD_ROUNDING, MicroBatch
from harness.core.run.records import DocumentLoss, EvaluationSeen, RankRecord, ReportedStep
from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound, looser
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.checks.gradients import grad_norms
from harness.judge.checks.outputs import step_losses
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.localise import layer_off
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.assemble import whole_activations
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import counted
from harness.judge.locations import where_of
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, stated


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation that every rank of the last stage finished."""

    number: int  # from 0, over all parts of the cell
    after: int  # number of finished steps
    plan: list[list[MicroBatch]]  # [dp][micro-batch]
    seen: list[tuple[RankRecord, EvaluationSeen]]  # of the last stage, in rank order
    documents: dict[int, DocumentLoss]  # summed over the cp ranks
    loss_sum: float | None
    outputs: dict[int, dict[int, Fingerprint]]  # layer (0: embedding) -> document, of all stages; empty: not recorded

    @property
    def tokens(self) -> int:
        """Those that count in the loss, by the plan."""
        return sum(batch.loss_tokens for replica in self.plan for batch in replica)


def evaluations_of(evidence: CellEvidence) -> Iterator[Evaluation]:
    """The finished evaluations of this part of the cell, in order."""
    config, last = evidence.cell.config, evidence.last_stage
    ranks = [evidence.records[rank] for rank in sorted(evidence.records) if evidence.records[rank].place.pp == last]
    if len(ranks) < evidence.layout.world_size // evidence.layout.pp:
        return
    for place, (number, after) in enumerate(config.evaluations.items()):
        if any(len(record.evaluations) <= place for record in ranks):
            return
        seen = [(record, record.evaluations[place]) for record in ranks]
        yield Evaluation(
            number=number,
            after=after,
            plan=config.micro_batches(config.train.steps + number),
            seen=seen,
            documents=_summed_documents(seen),
            loss_sum=next((item.loss_sum for _, item in seen if item.loss_sum is not None), None),
            outputs=_whole_outputs(evidence, place),
        )


def _whole_outputs(evidence: CellEvidence, place: int) -> dict[int, dict[int, Fingerprint]]:
    records = [evidence.records[rank] for rank in sorted(evidence.records)]
    if any(len(record.evaluations) <= place for record in records):
        return {}
    ranks = ((record.place, record.evaluations[place].activations) for record in records)
    return whole_activations(ranks, sp=evidence.layout.sp)


def _summed_documents(seen: list[tuple[RankRecord, EvaluationSeen]]) -> dict[int, DocumentLoss]:
    sums: dict[int, DocumentLoss] = {}
    for _, item in seen:
        for document, part in item.documents.items():
            old = sums.get(document, DocumentLoss(loss_sum=0.0, tokens=0))
            sums[document] = DocumentLoss(loss_sum=old.loss_sum + part.loss_sum, tokens=old.tokens + part.tokens)
    return sums


class _Metric(NamedTuple):
    """A reported number, and what it must be."""

    name: str
    reported: float | None
    right: float
    bound: Bound | None  # None: exact
    kind: str = fault_classes.REPORTED


_ROUNDING = Bound(value=WORKLOAD_ROUNDING, origin="exact but for the rounding of sums in float32")


@check(Lane.NUMERICS)
def reported(evidence: CellEvidence) -> list[CheckFinding]:
    """The first wrong step and rank of each metric."""
    if evidence.cell.config.own_trainer:
        return []
    computed = _Computed(evidence)
    wrong: dict[str, CheckFinding] = {}
    for record in evidence.records.values():
        for seen in record.reported:
            for metric in computed.metrics(seen, record.place.pp):
                if metric.name not in wrong and _metric_differs(metric):
                    wrong[metric.name] = _reported_finding(evidence, record, seen.step, metric)
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


def _metric_differs(metric: _Metric) -> bool:
    found = metric.reported
    if found is None:
        return True
    if not math.isfinite(found):
        return False  # the check finiteness reports it
    if metric.bound is None:
        return found != metric.right
    return beyond(distance(found, metric.right, metric.bound), metric.bound)


def _reported_finding(evidence: CellEvidence, record: RankRecord, step: int, metric: _Metric) -> CheckFinding:
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


_FP32 = 2.0**-23  # relative rounding of one sum in fp32


@check(Lane.NUMERICS)
def printed(evidence: CellEvidence) -> list[CheckFinding]:
    """The first wrong line of each field."""
    wrong: dict[str, CheckFinding] = {}
    for record in evidence.records.values():
        for seen in record.reported:
            if seen.printed is None:
                continue
            for name, right in _fields(evidence, record, seen):
                if name not in wrong and not _says(name, seen.printed.get(name), right):
                    wrong[name] = _printed_finding(record, seen, name, right)
    return list(wrong.values())


def _fields(evidence: CellEvidence, record: RankRecord, seen: ReportedStep) -> Iterator[tuple[str, Any]]:
    """(field, what it must say) of a line; the loss as a list of those whose mean it is. What was not reported is left
    to the check `reported`.
    """
    config = evidence.cell.config
    over = [one for one in record.reported if one.step in logged(config, seen.step)]
    yield "iteration", f"{seen.step + 1}/{config.train.steps}"
    yield "consumed samples", str(seen.consumed_samples)
    if seen.learning_rate is not None:
        yield "learning rate", f"{seen.learning_rate:.6E}"
    yield "global batch size", str(len(config.samples(0)))
    losses = [one.loss for one in over if one.loss is not None and math.isfinite(one.loss) and not one.skipped]
    if losses and len(losses) == len(over):
        yield LOSS, losses
    yield "loss scale", f"{seen.loss_scale:.1f}"
    if seen.grad_norm is not None:
        yield "grad norm", f"{seen.grad_norm:.3f}"
    yield "number of skipped iterations", str(sum(one.skipped for one in over))


def _says(name: str, text: str | None, right: Any) -> bool:
    """A mean of losses is summed in fp32, so its last digit may differ."""
    if name != LOSS or text is None:
        return bool(text == right)
    try:
        found = float(text)
    except ValueError:
        return False
    mean = _mean_loss(right)
    digit = 10.0 ** (int(f"{mean:.6E}".split("E")[1]) - 6)
    return len(text) == len(f"{mean:.6E}") and abs(found - mean) <= digit / 2 + len(right) * _FP32 * abs(mean)


def _mean_loss(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)


def _printed_finding(record: RankRecord, seen: ReportedStep, name: str, right: Any) -> CheckFinding:
    assert seen.printed is not None
    found, many = seen.printed.get(name), isinstance(right, list) and len(right) > 1
    text = f"{_mean_loss(right):.6E}" if isinstance(right, list) else right
    what = f", the mean of {len(right)} steps" if many else ""
    return CheckFinding(
        fault_class=fault_classes.REPORTED,
        message=f"printed {name} of step {seen.step} on rank {record.rank}: "
        f"{'none' if found is None else repr(found)}, reported was {text}{what}",
        where={"stage": record.place.pp, "rank": record.rank, "step": seen.step, "metric": name},
        measured=found,
        bound=exactly(text, "what training_log was given"),
    )


@check(Lane.NUMERICS)
def evaluation(evidence: CellEvidence) -> list[CheckFinding]:
    """The first finding of each kind."""
    kinds = (_absent(evidence), _modes(evidence), _tokens(evidence), _losses(evidence), _reports(evidence))
    return [finding for kind in kinds if (finding := next(kind, None)) is not None]


def _absent(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Upstream's trainers decide themselves when they evaluate."""
    right = list(evidence.cell.config.evaluations.values())
    for record in evidence.records.values():
        found = [seen.after for seen in record.evaluations]
        if record.ended == "completed" and not evidence.cell.config.own_trainer and found != right:
            yield _evaluation_finding(
                f"rank {record.rank} evaluated after {_steps_text(found)}, expected after {_steps_text(right)}",
                _where(record),
                measured=found,
                bound=exactly(right, "the cell's configuration"),
            )


def _steps_text(after: list[int]) -> str:
    return f"steps {', '.join(map(str, after))}" if after else "no step"


def _modes(evidence: CellEvidence) -> Iterator[CheckFinding]:
    for record in evidence.records.values():
        for step in record.steps:
            if not step.training:
                text = f"a module of rank {record.rank} is in evaluation mode in step {step.step}"
                yield _evaluation_finding(text, _where(record, step=step.step), measured=False, bound=_TRAINS)
        for seen in record.evaluations:
            if seen.training:
                text = f"a module of rank {record.rank} is in training mode in the evaluation after step {seen.after}"
                yield _evaluation_finding(text, _where(record, after=seen.after), measured=True, bound=_EVALUATES)


_TRAINS = exactly(True, "modules train in steps")
_EVALUATES = exactly(False, "modules do not train in evaluations")


def _tokens(evidence: CellEvidence) -> Iterator[CheckFinding]:
    for one in evaluations_of(evidence):
        right = {
            item.document.index: item.document.loss_tokens
            for replica in one.plan
            for batch in replica
            for item in batch.placed
        }
        for document in sorted(right):
            found = one.documents[document].tokens if document in one.documents else 0
            if found != right[document]:
                yield _evaluation_finding(
                    f"loss tokens of document {document} in the evaluation after step {one.after}: "
                    f"{found}, expected {right[document]} by the packing plan",
                    {"stage": evidence.last_stage, "after": one.after, "document": document},
                    measured=found,
                    bound=exactly(right[document], "the packing plan"),
                )
        for record, seen in one.seen:
            if seen.token_count != one.tokens:
                yield _evaluation_finding(
                    f"loss tokens of the evaluation after step {one.after} on rank {record.rank}: {seen.token_count}, "
                    f"expected {one.tokens} by the packing plan",
                    _where(record, after=one.after),
                    measured=seen.token_count,
                    bound=exactly(one.tokens, "the packing plan"),
                )


def _losses(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """With the reference's weights at that step, the loss is the reference's too."""
    if evidence.reference is None or not evidence.same_rows:
        return
    expected = {one.number: one.loss_sum for one in evaluations_of(evidence.reference)}
    for one in evaluations_of(evidence):
        bound, right = evidence.bound("step_loss", one.after), expected.get(one.number)
        if bound is None:
            return
        for record, seen in one.seen:
            if right is not None and _number_differs(seen.loss_sum, right, bound):
                yield _evaluation_finding(
                    f"loss sum of the evaluation after step {one.after} on rank {record.rank}: "
                    f"{_text(seen.loss_sum, right, bound, evidence.origin)}",
                    _where(record, after=one.after),
                    measured=seen.loss_sum,
                    bound=stated(bound),
                )
    yield from _documents(evidence)
    yield from _outputs(evidence)


def _documents(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """So are those of documents, whose errors may cancel in a sum."""
    assert evidence.reference is not None
    expected = {one.number: one.documents for one in evaluations_of(evidence.reference)}
    for one in evaluations_of(evidence):
        bounds = evidence.bound("document_loss", one.after), evidence.bound("step_loss", one.after)
        if bounds[0] is None or bounds[1] is None:
            return
        bound, right = looser(bounds[0], bounds[1]), expected.get(one.number, {})
        wrong = [
            document
            for document, loss in sorted(one.documents.items())
            if document in right and _number_differs(loss.loss_sum, right[document].loss_sum, bound)
        ]
        if wrong:
            found, expects = one.documents[wrong[0]].loss_sum, right[wrong[0]].loss_sum
            yield _evaluation_finding(
                f"loss sum of document {wrong[0]} in the evaluation after step {one.after}: "
                f"{_text(found, expects, bound, evidence.origin)}; {len(wrong)} of {len(right)} documents differ",
                {"stage": evidence.last_stage, "after": one.after, "document": wrong[0], "documents": wrong},
                measured=found,
                bound=stated(bound),
            )


def _outputs(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """So are the outputs of layers: in bf16 a loss hides what a whole block adds to a model that has hardly trained.

    Controls that train twice have no second outputs, from which bounds after an update would follow.
    """
    if evidence.reference is None or not evidence.by_oracle:
        return
    expected = {one.number: one.outputs for one in evaluations_of(evidence.reference)}
    for one in evaluations_of(evidence):
        bound = evidence.bound("activation", one.after)
        if bound is None:
            return
        off = layer_off(one.outputs, expected.get(one.number, {}), one.documents, bound) if one.outputs else None
        if off is not None:
            document, value = off.documents[0], off.off[off.documents[0]]
            yield _evaluation_finding(
                f"activations of the evaluation after step {one.after} first differ after layer {off.layer}: document "
                f"{document} off by {value:.3g} > {bound_text(bound)}; {len(off.documents)} of {len(off.off)} "
                "documents differ there",
                {"layer": off.layer, "after": one.after, "document": document, "documents": off.documents},
                measured=value,
                bound=stated(bound),
            )


def _reports(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """What upstream reports is the mean, as it defines it, of the losses that the harness recorded."""
    config = evidence.cell.config
    if config.own_trainer:
        return
    for one in evaluations_of(evidence):
        right, name = _mean(one, config)
        bound = evidence.own_bound("step_loss", one.after)
        for record, seen in one.seen:
            if _number_differs(seen.reported, right, bound):
                yield _evaluation_finding(
                    f"reported loss of the evaluation after step {one.after} on rank {record.rank}: "
                    f"{_text(seen.reported, right, bound, f'the mean over {name} is')}",
                    _where(record, after=one.after),
                    measured=seen.reported,
                    bound=stated(bound),
                    fault_class=fault_classes.REPORTED,
                )


def _mean(one: Evaluation, config: CellConfig) -> tuple[float, str]:
    """The mean loss that the trainer of a cell reports, and over what it is."""
    if config.trainer != "megatron" or not config.path.sft_flag:
        total = math.nan if one.loss_sum is None else one.loss_sum
        return total / max(one.tokens, 1), "tokens"
    means = []
    for batch in (batch for replica in one.plan for batch in replica):
        losses = [one.documents[item.document.index] for item in batch.placed if item.document.index in one.documents]
        means.append(sum(loss.loss_sum for loss in losses) / max(sum(loss.tokens for loss in losses), 1))
    return sum(means) / len(means), "micro-batches"


def _number_differs(found: float | None, right: float, bound: Bound) -> bool:
    """Values that are not finite are left to `finiteness`."""
    return found is None or (math.isfinite(found) and beyond(distance(found, right, bound), bound))


def _text(found: float | None, right: float, bound: Bound, name: str) -> str:
    if found is None:
        return f"none, {name} {right:.9g}"
    return f"{found:.9g}, {name} {right:.9g}, off by {distance(found, right, bound):.3g} > {bound_text(bound)}"


def _where(record: RankRecord, **more: Any) -> dict[str, Any]:
    return where_of(record.place, rank=record.rank, **more)


def _evaluation_finding(
    message: str,
    where: dict[str, Any],
    *,
    measured: Any,
    bound: dict[str, Any],
    fault_class: str = fault_classes.EVALUATION,
) -> CheckFinding:
    return CheckFinding(fault_class=fault_class, message=message, where=where, measured=measured, bound=bound)
