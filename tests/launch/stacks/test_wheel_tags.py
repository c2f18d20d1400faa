from __future__ import annotations

import platform

import pytest

from harness.launch.stacks.build import distribution, wheel_options


@pytest.mark.parametrize("requirement", ["nvidia-resiliency-ext==0.7.0", "nvidia_resiliency_ext>=0.5"])
def test_a_wheel_whose_tag_asks_for_too_much_is_taken(requirement: str) -> None:
    assert wheel_options(requirement) == ["--python-platform", f"{platform.machine()}-manylinux_2_39"]


def test_other_wheels_must_match_the_system() -> None:
    assert wheel_options("transformer-engine==2.20.2") == []


def test_a_requirement_names_its_distribution() -> None:
    assert distribution(" Transformer_Engine[pytorch] >= 2") == "transformer-engine"
