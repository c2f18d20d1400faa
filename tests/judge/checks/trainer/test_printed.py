from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.core.outcomes import Outcome
from harness.judge.checks import trainer
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding

cases = Cases()


def trained(*, interval: str | None = None, **layout: int) -> CellEvidence:
    """A cell of upstream's trainer whose lines are right."""
    args = Arguments(merged({"log_interval": None if interval is None else (interval,)}))
    return evidence_for(replace(config_of("sft", **layout), trainer="megatron", args=args))


def line(evidence: CellEvidence, step: int = 1) -> dict[str, str]:
    """What the last rank prints after a step, to be changed."""
    found = evidence.records[max(evidence.records)].reported[step].printed
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("iteration", "3/2"),
        ("consumed samples", "7"),
        ("learning rate", "1.000001E-03"),
        ("global batch size", "6"),
        ("lm loss", "4.000000E+00"),
        ("loss scale", "2.0"),
        ("grad norm", "2.001"),
        ("number of skipped iterations", "1"),
    ],
)
def test_a_line_that_says_something_else_than_was_reported_is_a_finding(name: str, text: str) -> None:
    evidence = trained(tp=2, pp=2)
    line(evidence)[name] = text
    finding = the_only_finding(evidence, "printed")
    assert finding.message.startswith(f"printed {name} of step 1 on rank 3: {text!r}, reported was ")
    assert place_of(finding, "stage", "step", "rank", "metric") == (1, 1, 3, name)
    assert finding.fault_class == fault_classes.REPORTED


def test_a_field_that_is_not_printed_is_a_finding() -> None:
    evidence = trained()
    del line(evidence)["lm loss"]
    assert the_only_finding(evidence, "printed").message.startswith("printed lm loss of step 1 on rank 0: none, ")


def test_the_last_digit_of_a_mean_may_be_rounded_otherwise() -> None:
    evidence = trained()
    mantissa, exponent = line(evidence)["lm loss"].split("E")
    found = []
    for units in (-3, 0, 3):
        line(evidence)["lm loss"] = f"{float(mantissa) + units * 1e-6:.6f}E{exponent}"
        found.append(judge(evidence).outcome is Outcome.PASS)
    assert found == [False, True, False]


def test_with_an_interval_of_one_a_line_prints_the_loss_of_its_step() -> None:
    evidence = trained(interval="1")
    last = evidence.records[0].reported[1]
    assert last.loss is not None
    line(evidence)["lm loss"] = f"{last.loss:.6E}"
    assert judge(evidence).outcome is Outcome.PASS
    first = evidence.records[0].reported[0]
    assert first.loss is not None
    line(evidence)["lm loss"] = f"{(first.loss + last.loss) / 2:.6E}"
    finding = the_only_finding(evidence, "printed")
    assert "mean" not in finding.message and f"reported was {last.loss:.6E}" in finding.message


@cases(trainer.printed)
def two_fields_and_one_that_is_missing() -> CellEvidence:
    evidence = trained(pp=2)
    line(evidence)["lm loss"] = "1.000000E+00"
    line(evidence, 0)["grad norm"] = "9.000"
    del line(evidence)["iteration"]
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_finding_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
