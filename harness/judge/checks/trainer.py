"""Upstream's own trainer: what it reports and prints, its evaluations, and how it continues from a checkpoint."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.core.cell.config import CellConfig
from harness.core.cell.flops import flops_of
from harness.core.cell.reports import LOSS, logged, reported_rate
from harness.core.cell.schedule import same_rate
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
        """Return the number of tokens that count in the loss, by the plan."""
        return sum(batch.loss_tokens for replica in self.plan for batch in replica)


def evaluations_of(evidence: CellEvidence) -> Iterator[Evaluation]:
    """Yield the finished evaluations of this part of the cell, in order."""
    config, last = evidence.cell.config, evidence.last_stage
    ranks = [evidence.records[rank] for rank in sorted(evidence.records) if evidence.records[rank].place.pp == last]
    # A sum over fewer ranks than the stage has would lack documents.
    if len(ranks) < evidence.layout.world_size // evidence.layout.pp:
        return
    for place, (number, after) in enumerate(config.evaluations.items()):
        if any(len(record.evaluations) <= place for record in ranks):
            return
        seen = [(record, record.evaluations[place]) for record in ranks]
        yield Evaluation(
            number=number,
            after=after,
            # Documents of evaluations are numbered after those of all steps, so that no step trains on them.
            plan=config.micro_batches(config.train.steps + number),
            seen=seen,
            documents=_summed_documents(seen),
            loss_sum=next((recorded.loss_sum for _, recorded in seen if recorded.loss_sum is not None), None),
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
    for _, recorded in seen:
        for document, part in recorded.documents.items():
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
    """Check each metric that upstream's trainer reports; the finding is its first wrong step and rank."""
    if evidence.cell.config.trained_by_harness:
        return []
    computed = _Computed(evidence)
    wrong: dict[str, CheckFinding] = {}
    for record in evidence.records.values():
        for reported_step in record.reported:
            for metric in computed.metrics(reported_step, record.place.pp):
                if metric.name not in wrong and _metric_differs(metric):
                    wrong[metric.name] = _reported_finding(evidence, record, reported_step.step, metric)
    return list(wrong.values())


class _Computed:
    """What the harness computed of each step, or the cell's configuration sets."""

    def __init__(self, evidence: CellEvidence) -> None:
        self.evidence = evidence
        self.losses, self.norms = step_losses(evidence), grad_norms(evidence)
        self.tokens = {
            step: recorded.token_count
            for step in evidence.finished_steps
            for _, recorded in evidence.step_records(step, pp=evidence.last_stage)
        }
        samples = [len(evidence.cell.config.samples(step)) for step in range(len(evidence.plan))]
        self.consumed = list(itertools.accumulate(samples))
        packed = any(record.counts_packed for record in evidence.records.values())
        self.counted = {step: counted(evidence, step, packed) for step in evidence.steps}

    def metrics(self, reported_step: ReportedStep, stage: int) -> Iterator[_Metric]:
        """Yield the metrics that a rank of this pipeline stage reports."""
        config, step = self.evidence.cell.config, reported_step.step
        loss, tokens = self.losses.get(step), self.tokens.get(step)
        if loss is not None and tokens and stage == self.evidence.last_stage:
            yield _Metric("loss", reported_step.loss, loss / tokens, self.evidence.own_bound("step_loss", step))
        if step in self.norms:
            yield _Metric(
                "gradient norm", reported_step.grad_norm, self.norms[step], self.evidence.own_bound("grad_norm", step)
            )
        yield _Metric("learning rate", reported_step.learning_rate, reported_rate(config, step), None)
        # Neither fp32 nor bf16 scales its loss; another scale means fp16 or a wrong report.
        yield _Metric("loss scale", reported_step.loss_scale, 1.0, None)
        yield _Metric("number of skipped steps", reported_step.skipped, 0, None)
        if step in self.counted:
            yield _Metric("number of consumed samples", reported_step.consumed_samples, self.consumed[step], None)
            yield from self._counters(reported_step)

    def _counters(self, reported_step: ReportedStep) -> Iterator[_Metric]:
        """Yield the counters that the rank reports; which must be there is a matter of judge/complete.py."""
        counts = self.counted[reported_step.step]
        flops = flops_of(self.evidence.cell.config.model, counts.tokens, counts.squares)
        for name, count, expected in (
            ("number of packed tokens", reported_step.packed_tokens, counts.tokens),
            ("sum of squared lengths", reported_step.packed_squares, counts.squares),
            ("number of floating-point operations", reported_step.flops, flops),
        ):
            if count is not None:
                yield _Metric(name, count, expected, _ROUNDING, fault_classes.WORKLOAD)


def _metric_differs(metric: _Metric) -> bool:
    value = metric.reported
    if value is None:
        return True
    if not math.isfinite(value):
        return False  # the check finiteness reports it
    if metric.bound is None:
        return not same_rate(value, metric.right)
    return beyond(distance(value, metric.right, metric.bound), metric.bound)


def _reported_finding(evidence: CellEvidence, record: RankRecord, step: int, metric: _Metric) -> CheckFinding:
    value, ratio, off = metric.reported, None, ""
    if value is not None and metric.bound is not None:
        if metric.right:
            screen = _ROUNDING.value if metric.bound is _ROUNDING else evidence.tolerances.ratio_screen
            ratio = ratio_name(value / metric.right, factors_of(evidence, step), screen)
        off = f", off by {distance(value, metric.right, metric.bound):.3g} > {bound_text(metric.bound)}"
    named = f"; the ratio is {ratio}" if ratio else ""
    counter = metric.kind == fault_classes.WORKLOAD
    return CheckFinding(
        fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio and not counter else metric.kind,
        message=f"reported {metric.name} of step {step} on rank {record.rank}: "
        f"{'none' if value is None else f'{value:.9g}'}, should be "
        f"{metric.right:.9g}{off}{named}",
        where={"stage": record.place.pp, "rank": record.rank, "step": step, "metric": metric.name}
        | ({"ratio": ratio} if ratio else {}),
        measured=value,
        bound=exactly(metric.right, "the cell's configuration") if metric.bound is None else stated(metric.bound),
    )


_FP32 = 2.0**-23  # relative rounding of one sum in fp32


@check(Lane.NUMERICS)
def printed(evidence: CellEvidence) -> list[CheckFinding]:
    """Check each field of the lines that upstream's trainer prints; the finding is its first wrong line."""
    wrong: dict[str, CheckFinding] = {}
    for record in evidence.records.values():
        for reported_step in record.reported:
            if reported_step.printed is None:
                continue
            for name, right in _fields(evidence, record, reported_step):
                if name not in wrong and not _says(name, reported_step.printed.get(name), right):
                    wrong[name] = _printed_finding(record, reported_step, name, right)
    return list(wrong.values())


def _fields(evidence: CellEvidence, record: RankRecord, reported_step: ReportedStep) -> Iterator[tuple[str, Any]]:
    """Yield (field, what it must say) of a line; the loss as a list of those whose mean it is.

    What was not reported is left to the check `reported`.
    """
    config = evidence.cell.config
    over = [step for step in record.reported if step.step in logged(config, reported_step.step)]
    yield "iteration", f"{reported_step.step + 1}/{config.train.steps}"
    yield "consumed samples", str(reported_step.consumed_samples)
    if reported_step.learning_rate is not None:
        yield "learning rate", f"{reported_step.learning_rate:.6E}"
    yield "global batch size", str(len(config.samples(0)))
    # Compared only if none of the steps was skipped or gave NaN, which upstream counts apart.
    losses = [step.loss for step in over if step.loss is not None and math.isfinite(step.loss) and not step.skipped]
    if losses and len(losses) == len(over):
        yield LOSS, losses
    yield "loss scale", f"{reported_step.loss_scale:.1f}"
    if reported_step.grad_norm is not None:
        yield "grad norm", f"{reported_step.grad_norm:.3f}"
    yield "number of skipped iterations", str(sum(step.skipped for step in over))


def _says(name: str, text: str | None, expected: Any) -> bool:
    """Return whether a field says what it must. A mean of losses is summed in fp32, so its last digit may differ."""
    if name != LOSS or text is None:
        return bool(text == expected)
    try:
        value = float(text)
    except ValueError:
        return False
    mean = _mean_loss(expected)
    # The value of the last printed digit: half of it is what printing may lose.
    digit = 10.0 ** (int(f"{mean:.6E}".split("E")[1]) - 6)
    return len(text) == len(f"{mean:.6E}") and abs(value - mean) <= digit / 2 + len(expected) * _FP32 * abs(mean)


def _mean_loss(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)


def _printed_finding(record: RankRecord, reported_step: ReportedStep, name: str, expected: Any) -> CheckFinding:
    assert reported_step.printed is not None
    printed_text, many = reported_step.printed.get(name), isinstance(expected, list) and len(expected) > 1
    text = f"{_mean_loss(expected):.6E}" if isinstance(expected, list) else expected
    what = f", the mean of {len(expected)} steps" if many else ""
    return CheckFinding(
        fault_class=fault_classes.REPORTED,
        message=f"printed {name} of step {reported_step.step} on rank {record.rank}: "
        f"{'none' if printed_text is None else repr(printed_text)}, reported was {text}{what}",
        where={"stage": record.place.pp, "rank": record.rank, "step": reported_step.step, "metric": name},
        measured=printed_text,
        bound=exactly(text, "what training_log was given"),
    )


@check(Lane.NUMERICS)
def evaluation(evidence: CellEvidence) -> list[CheckFinding]:
    """Check the evaluations of upstream's trainer: the first finding of each kind."""
    kinds = (_absent(evidence), _modes(evidence), _tokens(evidence), _losses(evidence), _reports(evidence))
    return [finding for kind in kinds if (finding := next(kind, None)) is not None]


def _absent(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Compare when evaluations ran: upstream's trainers decide that themselves."""
    expected_after = list(evidence.cell.config.evaluations.values())
    for record in evidence.records.values():
        evaluated_after = [recorded.after for recorded in record.evaluations]
        if (
            record.ended == "completed"
            and not evidence.cell.config.trained_by_harness
            and evaluated_after != expected_after
        ):
            yield _evaluation_finding(
                f"rank {record.rank} evaluated after {_steps_text(evaluated_after)}, "
                f"expected after {_steps_text(expected_after)}",
                _where(record),
                measured=evaluated_after,
                bound=exactly(expected_after, "the cell's configuration"),
            )


def _steps_text(after: list[int]) -> str:
    return f"steps {', '.join(map(str, after))}" if after else "no step"


def _modes(evidence: CellEvidence) -> Iterator[CheckFinding]:
    for record in evidence.records.values():
        for step in record.steps:
            if not step.training:
                text = f"a module of rank {record.rank} is in evaluation mode in step {step.step}"
                yield _evaluation_finding(text, _where(record, step=step.step), measured=False, bound=_TRAINS)
        for recorded in record.evaluations:
            if recorded.training:
                text = (
                    f"a module of rank {record.rank} is in training mode in the evaluation after step {recorded.after}"
                )
                yield _evaluation_finding(text, _where(record, after=recorded.after), measured=True, bound=_EVALUATES)


_TRAINS = exactly(True, "modules train in steps")
_EVALUATES = exactly(False, "modules do not train in evaluations")


def _tokens(evidence: CellEvidence) -> Iterator[CheckFinding]:
    for finished in evaluations_of(evidence):
        expected = {
            placed.document.index: placed.document.loss_tokens
            for replica in finished.plan
            for batch in replica
            for placed in batch.placed
        }
        for document in sorted(expected):
            tokens = finished.documents[document].tokens if document in finished.documents else 0
            if tokens != expected[document]:
                yield _evaluation_finding(
                    f"loss tokens of document {document} in the evaluation after step {finished.after}: "
                    f"{tokens}, expected {expected[document]} by the packing plan",
                    {"stage": evidence.last_stage, "after": finished.after, "document": document},
                    measured=tokens,
                    bound=exactly(expected[document], "the packing plan"),
                )
        for record, recorded in finished.seen:
            if recorded.token_count != finished.tokens:
                yield _evaluation_finding(
                    f"loss tokens of the evaluation after step {finished.after} on rank {record.rank}: "
                    f"{recorded.token_count}, expected {finished.tokens} by the packing plan",
                    _where(record, after=finished.after),
                    measured=recorded.token_count,
                    bound=exactly(finished.tokens, "the packing plan"),
                )


def _losses(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Compare losses: with the reference's weights at that step, the loss is the reference's too."""
    if evidence.reference is None or not evidence.same_rows:
        return
    expected = {finished.number: finished.loss_sum for finished in evaluations_of(evidence.reference)}
    for finished in evaluations_of(evidence):
        bound, expected_loss = evidence.bound("step_loss", finished.after), expected.get(finished.number)
        if bound is None:
            return
        for record, recorded in finished.seen:
            if expected_loss is not None and _number_differs(recorded.loss_sum, expected_loss, bound):
                yield _evaluation_finding(
                    f"loss sum of the evaluation after step {finished.after} on rank {record.rank}: "
                    f"{_text(recorded.loss_sum, expected_loss, bound, evidence.origin)}",
                    _where(record, after=finished.after),
                    measured=recorded.loss_sum,
                    bound=stated(bound),
                )
    yield from _documents(evidence)
    yield from _outputs(evidence)


def _documents(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Compare losses of documents, whose errors may cancel in a sum."""
    assert evidence.reference is not None
    expected = {finished.number: finished.documents for finished in evaluations_of(evidence.reference)}
    for finished in evaluations_of(evidence):
        bounds = evidence.bound("document_loss", finished.after), evidence.bound("step_loss", finished.after)
        if bounds[0] is None or bounds[1] is None:
            return
        bound, expected_losses = looser(bounds[0], bounds[1]), expected.get(finished.number, {})
        wrong = [
            document
            for document, loss in sorted(finished.documents.items())
            if document in expected_losses and _number_differs(loss.loss_sum, expected_losses[document].loss_sum, bound)
        ]
        if wrong:
            loss_sum, expected_loss = finished.documents[wrong[0]].loss_sum, expected_losses[wrong[0]].loss_sum
            yield _evaluation_finding(
                f"loss sum of document {wrong[0]} in the evaluation after step {finished.after}: "
                f"{_text(loss_sum, expected_loss, bound, evidence.origin)}; "
                f"{len(wrong)} of {len(expected_losses)} documents differ",
                {"stage": evidence.last_stage, "after": finished.after, "document": wrong[0], "documents": wrong},
                measured=loss_sum,
                bound=stated(bound),
            )


def _outputs(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Compare outputs of layers: in bf16 a loss hides what a whole block adds to a model that has hardly trained.

    Controls that train twice have no second outputs, from which bounds after an update would follow.
    """
    if evidence.reference is None or not evidence.by_oracle:
        return
    expected = {finished.number: finished.outputs for finished in evaluations_of(evidence.reference)}
    for finished in evaluations_of(evidence):
        bound = evidence.bound("activation", finished.after)
        if bound is None:
            return
        off = (
            layer_off(finished.outputs, expected.get(finished.number, {}), finished.documents, bound)
            if finished.outputs
            else None
        )
        if off is not None:
            document, value = off.documents[0], off.off[off.documents[0]]
            yield _evaluation_finding(
                f"activations of the evaluation after step {finished.after} first differ after layer {off.layer}: "
                f"document {document} off by {value:.3g} > {bound_text(bound)}; {len(off.documents)} of {len(off.off)} "
                "documents differ there",
                {"layer": off.layer, "after": finished.after, "document": document, "documents": off.documents},
                measured=value,
                bound=stated(bound),
            )


def _reports(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Compare what upstream reports with the mean, as it defines it, of the losses that the harness recorded."""
    config = evidence.cell.config
    if config.trained_by_harness:
        return
    for finished in evaluations_of(evidence):
        expected, name = _mean(finished, config)
        bound = evidence.own_bound("step_loss", finished.after)
        for record, recorded in finished.seen:
            if _number_differs(recorded.reported, expected, bound):
                yield _evaluation_finding(
                    f"reported loss of the evaluation after step {finished.after} on rank {record.rank}: "
                    f"{_text(recorded.reported, expected, bound, f'the mean over {name} is')}",
                    _where(record, after=finished.after),
                    measured=recorded.reported,
                    bound=stated(bound),
                    fault_class=fault_classes.REPORTED,
                )


def _mean(finished: Evaluation, config: CellConfig) -> tuple[float, str]:
    """Return the mean loss that the trainer of a cell reports, and over what it is."""
    # With --sft Megatron-LM's evaluation takes the mean of each micro-batch first; all others divide one sum by all
    # tokens.
    if config.trainer != "megatron" or not config.path.sft_flag:
        total = math.nan if finished.loss_sum is None else finished.loss_sum
        return total / max(finished.tokens, 1), "tokens"
    means = []
    for batch in (batch for replica in finished.plan for batch in replica):
        losses = [
            finished.documents[placed.document.index]
            for placed in batch.placed
            if placed.document.index in finished.documents
        ]
        means.append(sum(loss.loss_sum for loss in losses) / max(sum(loss.tokens for loss in losses), 1))
    return sum(means) / len(means), "micro-batches"


def _number_differs(value: float | None, expected: float, bound: Bound) -> bool:
    """Return whether a number differs; values that are not finite are left to `finiteness`."""
    return value is None or (math.isfinite(value) and beyond(distance(value, expected, bound), bound))


def _text(value: float | None, expected: float, bound: Bound, name: str) -> str:
    if value is None:
        return f"none, {name} {expected:.9g}"
    return f"{value:.9g}, {name} {expected:.9g}, off by {distance(value, expected, bound):.3g} > {bound_text(bound)}"


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
