"""Findings about the optimizer's first update, and about what its gradient norm counts, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.run.tensor_records import Fingerprint, UpdateSeen
from harness.features.optimizer import checks
from harness.judge.checks import gradients
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.optimizer.test_first_update import change, name_of
from tests.judge.checks.optimizer.test_norm_members import SHARDED, WHOLE, count
from tests.judge.checks.whole import Cases, absolute, of, of_other_rows
from tests.judge.simulator import config_of, evidence_for

cases = Cases()


def update_of(evidence: CellEvidence, number: int, rank: int = 0) -> UpdateSeen:
    update = evidence.records[rank].parameters[number].update
    assert update is not None
    return update


@cases(checks.first_update)
def first_moments_of_a_shard_and_of_another_stage() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    change(evidence, "output_layer.weight", "first_moment", 1.5)
    change(evidence, SHARDED, "first_moment", 2.0, ranks=(1,))
    return evidence


@cases(checks.first_update)
def a_second_moment_and_a_change() -> CellEvidence:
    evidence = of(pp=2)
    change(evidence, name_of(evidence, 5), "second_moment", 0.5)
    change(evidence, name_of(evidence), "change", 0.5)
    return evidence


@cases(checks.first_update)
def changes_of_two_weights() -> CellEvidence:
    evidence = of(pp=2)
    change(evidence, name_of(evidence, 5), "change", 1.25)
    change(evidence, name_of(evidence), "change", 0.5)
    return evidence


@cases(checks.first_update)
def first_moments_of_copies_on_two_ranks() -> CellEvidence:
    evidence = of(tp=2, dp=2)
    change(evidence, SHARDED, "first_moment", 1.5, ranks=(2,))
    change(evidence, WHOLE, "first_moment", 0.5, ranks=(1, 3))
    return evidence


@cases(checks.first_update)
def second_moments_of_copies_on_another_stage() -> CellEvidence:
    evidence = of(pp=2, dp=2)
    change(evidence, "decoder.final_layernorm.weight", "second_moment", 1.5, ranks=(3,))
    return evidence


@cases(checks.first_update)
def the_copy_that_the_others_are_compared_with() -> CellEvidence:
    evidence = of(dp=2)
    change(evidence, SHARDED, "change", 2.0, ranks=(0,))
    return evidence


@cases(checks.first_update)
def copies_within_the_bound() -> CellEvidence:
    evidence = of(dp=2)
    change(evidence, WHOLE, "first_moment", 1.00009, ranks=(1,))
    return evidence


@cases(checks.first_update)
def copies_without_an_update() -> CellEvidence:
    evidence = of(dp=2)
    evidence.records[0].parameters[1].update = None
    evidence.records[1].parameters[2].update = None
    return evidence


@cases(checks.first_update)
def a_parameter_without_an_update_and_one_that_is_off() -> CellEvidence:
    evidence = of()
    evidence.records[0].parameters[1].update = None
    change(evidence, name_of(evidence, 2), "first_moment", 0.5)
    return evidence


@cases(checks.trained_weights)
def changes_over_all_steps_of_a_rank_that_did_not_finish_and_of_another_parameter() -> CellEvidence:
    evidence = of(dp=2)
    update_of(evidence, 1).trained = None
    change(evidence, name_of(evidence, 2), "trained", 0.5)
    return evidence


@cases(checks.first_update)
def updates_of_other_rows() -> CellEvidence:
    evidence = of_other_rows()
    change(evidence, name_of(evidence), "first_moment", 0.5)
    return evidence


@cases(checks.first_update)
def a_control_without_fingerprints() -> CellEvidence:
    evidence = of()
    assert evidence.control is not None
    evidence.control.records[0].parameters.clear()
    return evidence


@cases(checks.first_update)
def infinite_updates_of_the_cell_or_of_its_control() -> CellEvidence:
    evidence = of()
    assert evidence.control is not None
    update_of(evidence, 1).first_moment.norm_sq = math.inf
    update_of(evidence.control, 2).first_moment.norm_sq = math.inf
    return evidence


@cases(checks.first_update)
def more_parameters_than_are_listed() -> CellEvidence:
    config = config_of("sft")
    evidence = evidence_for(replace(config, model=replace(config.model, layers=6)))
    for seen in evidence.records[0].parameters:
        change(evidence, seen.name, "first_moment", 1.5)
    return evidence


@cases(checks.first_update)
def first_moments_beyond_an_absolute_bound() -> CellEvidence:
    evidence = absolute(of(), "parameter_gradient")
    change(evidence, name_of(evidence), "first_moment", 1.5)
    return evidence


def small(evidence: CellEvidence, rank: int, norm_sq: float) -> None:
    """Give one parameter moments and a change whose squared norms are tiny."""
    seen = evidence.records[rank].parameters[4]
    tiny = Fingerprint(norm_sq=norm_sq, projections=[0.0, 0.0])
    seen.update = UpdateSeen(first_moment=tiny, second_moment=tiny, change=tiny)


def with_noise(evidence: CellEvidence) -> CellEvidence:
    evidence.tolerances = replace(evidence.tolerances, noise_only=frozenset({name_of(evidence, 4)}))
    return evidence


def small_whole() -> CellEvidence:
    evidence = of()
    assert evidence.control is not None
    small(evidence, 0, 4e-12)
    small(evidence.control, 0, 1e-12)
    return evidence


def small_copies() -> CellEvidence:
    evidence = of(dp=2)
    assert evidence.control is not None
    small(evidence.control, 0, 1e-12)
    small(evidence, 0, 1e-12)
    small(evidence, 1, 4e-12)
    return evidence


@cases(checks.first_update)
def a_small_update() -> CellEvidence:
    return small_whole()


@cases(checks.first_update)
def copies_of_a_small_update() -> CellEvidence:
    return small_copies()


@cases(checks.first_update)
def an_update_by_rounding_noise() -> CellEvidence:
    return with_noise(small_whole())


@cases(checks.first_update)
def copies_of_an_update_by_rounding_noise() -> CellEvidence:
    return with_noise(small_copies())


@cases(checks.first_update)
def a_first_moment_that_rounding_noise_cannot_explain() -> CellEvidence:
    evidence = with_noise(of())
    change(evidence, name_of(evidence, 4), "first_moment", 3.0)
    return evidence


def change_what_noise_decides(evidence: CellEvidence, *ranks: int) -> CellEvidence:
    """Scale what Adam makes of a gradient that is noise: it can be of any size."""
    for field in ("second_moment", "change"):
        change(evidence, name_of(evidence, 4), field, 3.0, ranks)
    return with_noise(evidence)


@cases(checks.first_update)
def what_rounding_noise_decides_and_another_second_moment() -> CellEvidence:
    evidence = change_what_noise_decides(of())
    change(evidence, name_of(evidence, 6), "second_moment", 0.5)
    return evidence


@cases(checks.first_update)
def copies_of_what_rounding_noise_decides() -> CellEvidence:
    return change_what_noise_decides(of(dp=2), 1)


@cases(gradients.norm_members)
def shards_that_are_left_out_on_two_stages() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    count(evidence, "decoder.layers.3.mlp.linear_fc1.weight", False, 2)
    count(evidence, SHARDED, False, 1)
    return evidence


@cases(gradients.norm_members)
def every_shard_of_a_parameter() -> CellEvidence:
    evidence = of(tp=2, dp=2)
    count(evidence, SHARDED, False, 0, 1, 2, 3)
    return evidence


@cases(gradients.norm_members)
def a_copy_that_is_counted_on_every_tensor_parallel_rank() -> CellEvidence:
    evidence = of(tp=4)
    count(evidence, WHOLE, True, 1, 3)
    count(evidence, "decoder.final_layernorm.weight", False, 0)
    return evidence


@cases(gradients.norm_members)
def a_tied_embedding_that_is_counted_on_both_stages() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    for rank in (2, 3):
        evidence.records[rank].parameters[-1].name = "embedding.word_embeddings.weight"
    return evidence


@cases(gradients.norm_members)
def a_parameter_that_only_the_second_replica_counts() -> CellEvidence:
    evidence = of(dp=2)
    count(evidence, WHOLE, False, 0)
    return evidence


@cases(gradients.norm_members)
def a_parameter_that_only_the_first_replica_counts() -> CellEvidence:
    evidence = of(dp=2)
    count(evidence, WHOLE, False, 1)
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_an_optimizer_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))


def test_a_bound_of_one_is_not_compared_with_what_is_beyond_it_either() -> None:
    evidence = of()
    bound = replace(evidence.tolerances.parameter_gradient, value=0.25)
    evidence.tolerances = replace(evidence.tolerances, parameter_gradient=bound)
    change(evidence, name_of(evidence), "second_moment", 3.0)
    change(evidence, name_of(evidence), "change", 3.0)
    assert checks.first_update(evidence) == []
