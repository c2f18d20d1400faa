from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.upstream import DISTRIBUTIONS, HEADS, distribution_of, why_unsupported
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


@pytest.mark.parametrize(
    ("version", "supported"), [((0, 10, 0), False), ((0, 11, 2), False), ((0, 13, 0), True), ((1, 0, 0), True)]
)
def test_a_release_below_what_is_supported_is_named_with_its_version(
    version: tuple[int, int, int], supported: bool, tmp_path: Path
) -> None:
    major, minor, patch = version
    (tmp_path / "package_info.py").write_text(
        f"MAJOR = {major}\nMINOR = {minor}\nPATCH = {patch}\nPRE_RELEASE = 'rc1'\n"
    )
    why = f"{tmp_path} is megatron-core 0.{minor}.{patch}, and the harness supports 0.13 and later"
    assert why_unsupported(tmp_path) == ("" if supported else why)


def test_a_release_that_does_not_say_its_version_is_tried(tmp_path: Path) -> None:
    assert why_unsupported(tmp_path) == ""
