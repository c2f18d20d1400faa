from __future__ import annotations

import math
from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import ToleranceOverrides, tolerances_for
from harness.features.optimizer import checks
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.optimizer.test_first_update import cell, change, name_of
from tests.judge.checks.whole import absolute
from tests.judge.simulator import judge, place_of, the_only_finding

STEPS = 2  # of the simulated cells


def checked(evidence: CellEvidence) -> list[str]:
    return [finding.message.split(" > ")[0] for finding in checks.trained_weights(evidence)]


def test_a_change_that_differs_from_the_controls_names_parameter_and_last_step() -> None:
    evidence = cell(pp=2)
    name = name_of(evidence)
    assert evidence.cell.config.train.steps == STEPS
    change(evidence, name, "trained", 2 / 3)
    finding = the_only_finding(evidence, "trained_weights")
    assert finding.message.startswith(
        f"change over {STEPS} steps of {name}, whose first update is right, is off by 0.333 > 0.0283 relative ("
    )
    assert finding.message.endswith(f" from the control; differing: parameter {name}")
    assert finding.bound["origin"] == (
        "2 sqrt(2 x 0.0001), the bound of gradients: Adam's updates are about their signs"
    )
    assert place_of(finding, "step", "parameter", "parameters") == (STEPS - 1, name, [name])
    assert finding.fault_class == fault_classes.OPTIMIZER


def test_a_copy_whose_last_update_was_skipped_names_its_rank() -> None:
    evidence = cell(dp=2)
    name = name_of(evidence)
    change(evidence, name, "trained", 2 / 3, ranks=(1,))
    finding = the_only_finding(evidence, "trained_weights")
    assert "from its copy on rank 0; here rank 1 (" in finding.message
    assert place_of(finding, "rank", "dp", "parameter") == (1, 1, name)


def test_one_tp_shard_is_enough() -> None:
    evidence = cell(tp=2)
    change(evidence, "output_layer.weight", "trained", 2 / 3, ranks=(1,))
    assert the_only_finding(evidence, "trained_weights").where["parameter"] == "output_layer.weight"


@pytest.mark.parametrize("earlier", ["first_moment", "second_moment", "change"])
def test_what_follows_from_a_wrong_first_update_is_not_reported_again(earlier: str) -> None:
    evidence = cell(tp=2)
    change(evidence, name_of(evidence), "trained", 0.5)
    change(evidence, name_of(evidence), earlier, 0.5)
    assert the_only_finding(evidence, "first_update")
    assert checked(evidence) == []


@pytest.mark.parametrize(
    ("factor", "gradient", "found"), [(1.028, 1e-4, 0), (1.029, 1e-4, 1), (0.0, 0.124, 1), (0.0, 0.125, 0)]
)
def test_the_bound_grows_with_the_steps_up_to_where_it_accepts_no_training(
    factor: float, gradient: float, found: int
) -> None:
    evidence = cell()  # two steps: sqrt(2) * 2 * sqrt(0.125) is 1
    bound = replace(evidence.tolerances.parameter_gradient, value=gradient)
    evidence.tolerances = replace(evidence.tolerances, parameter_gradient=bound)
    change(evidence, name_of(evidence), "trained", factor)
    assert len(checked(evidence)) == found


def test_an_absolute_bound_is_not_one_of_weights() -> None:
    evidence = absolute(cell(), "parameter_gradient")
    change(evidence, name_of(evidence), "trained", 0.5)
    assert checked(evidence) == []


def test_a_parameter_of_noise_is_not_compared() -> None:
    evidence = cell()
    evidence.tolerances = replace(evidence.tolerances, noise_only=frozenset({name_of(evidence)}))
    change(evidence, name_of(evidence), "trained", 0.5)
    assert checked(evidence) == []


def test_a_completed_rank_without_it_is_incomplete_evidence() -> None:
    evidence = cell(dp=2)
    update = evidence.records[1].parameters[0].update
    assert update is not None
    update.trained = None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert f"record of rank 1: parameters: {name_of(evidence, 0)} has no update" in verdict.reason


def test_a_rank_that_did_not_finish_is_not_compared() -> None:
    evidence = cell(dp=2)
    update = evidence.records[0].parameters[0].update
    assert update is not None
    update.trained = None
    assert checked(evidence) == []


def test_a_change_that_is_not_finite_fails() -> None:
    evidence = cell()
    update = evidence.records[0].parameters[2].update
    assert update is not None
    update.trained = Fingerprint(norm_sq=math.nan, projections=[0.0, 0.0])
    finding = the_only_finding(evidence, "finiteness")
    assert f"the change over all steps of {name_of(evidence, 2)}" in finding.message


@pytest.mark.parametrize("steps", [3, 8, 100])
def test_in_bf16_weights_that_stop_after_the_first_update_are_beyond_the_bound(steps: int) -> None:
    evidence = cell()
    config = evidence.cell.config
    config = replace(config, dtype="bf16", train=replace(config.train, steps=steps))
    bounds = tolerances_for("bf16", ToleranceOverrides(), by_oracle=True)
    stopped = replace(evidence, cell=replace(evidence.cell, config=config), tolerances=bounds)
    assert checks.bound_of(stopped).value < 1 - 1 / steps
