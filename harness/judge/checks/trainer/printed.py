"""The line that upstream's trainer prints after a step says what it reported, to the printed digits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from harness.core.cell.reports import LOSS, logged
from harness.core.run.records import RankRecord, ReportedStep
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import exactly

_FP32 = 2.0**-23  # relative rounding of one sum in fp32


def check(evidence: CellEvidence) -> list[CheckFinding]:
    """The first wrong line of each field."""
    wrong: dict[str, CheckFinding] = {}
    for record in evidence.records.values():
        for seen in record.reported:
            if seen.printed is None:
                continue
            for name, right in _fields(evidence, record, seen):
                if name not in wrong and not _says(name, seen.printed.get(name), right):
                    wrong[name] = _finding(record, seen, name, right)
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
    mean = _mean(right)
    digit = 10.0 ** (int(f"{mean:.6E}".split("E")[1]) - 6)
    return len(text) == len(f"{mean:.6E}") and abs(found - mean) <= digit / 2 + len(right) * _FP32 * abs(mean)


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)


def _finding(record: RankRecord, seen: ReportedStep, name: str, right: Any) -> CheckFinding:
    assert seen.printed is not None
    found, many = seen.printed.get(name), isinstance(right, list) and len(right) > 1
    text = f"{_mean(right):.6E}" if isinstance(right, list) else right
    what = f", the mean of {len(right)} steps" if many else ""
    return CheckFinding(
        fault_class=fault_classes.REPORTED,
        message=f"printed {name} of step {seen.step} on rank {record.rank}: "
        f"{'none' if found is None else repr(found)}, reported was {text}{what}",
        where={"stage": record.place.pp, "rank": record.rank, "step": seen.step, "metric": name},
        measured=found,
        bound=exactly(text, "what training_log was given"),
    )
