from __future__ import annotations

import pytest

from harness.core.upstream import DISTRIBUTIONS, HEADS, distribution_of
from harness.judge.diagnosis.known_issues import KNOWN_ISSUES


@pytest.mark.parametrize(
    ("module", "distribution"),
    [("megatron.core", "megatron-core"), ("skyrl_train", "skyrl-train"), ("torch", "torch"), ("a_b", "a-b")],
)
def test_a_module_belongs_to_its_distribution(module: str, distribution: str) -> None:
    assert distribution_of(module) == distribution


def test_every_module_with_a_version_is_recorded_once() -> None:
    assert len(set(HEADS)) == len(HEADS)
    assert {*DISTRIBUTIONS.values(), "megatron.training", "pretrain_gpt"} == set(HEADS)


def test_known_issues_name_distributions_whose_version_is_recorded() -> None:
    assert {issue.package for issue in KNOWN_ISSUES} <= set(DISTRIBUTIONS)
