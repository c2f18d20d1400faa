from __future__ import annotations

import math
import random

import pytest

from harness.core.run.tensor_records import Fingerprint
from harness.judge.diagnosis.ratios import DOCUMENTS, common_ratio, factors_of, ratio_name, scale_of
from tests.judge.simulator import config_of, evidence_for

FACTORS = {"cp": 2.0, "micro-batches": 3.0}


@pytest.mark.parametrize(
    ("ratio", "name"),
    [
        (2.0, "x cp"),
        (0.5, "x 1/cp"),
        (3.05, "x micro-batches"),
        (6.0, "x (cp micro-batches)"),
        (1 / 6, "x 1/(cp micro-batches)"),
        (6.06, None),  # a product must match ten times as closely
        (1.0, None),
        (1.3, None),
    ],
)
def test_ratios_are_named(ratio: float, name: str | None) -> None:
    assert ratio_name(ratio, FACTORS, 0.02) == name


def test_factors_of_equal_size_are_all_named() -> None:
    assert ratio_name(2.0, {"cp": 2.0, "tp": 2.0}, 0.02) == "x cp or tp"


def test_random_ratios_are_rarely_named() -> None:
    generator = random.Random(7)
    factors = {"cp": 2.0, "tp": 4.0, "dp": 2.0, "pp": 4.0, "vpp": 2.0, "micro-batches": 6.0, DOCUMENTS: 5.0}
    ratios = [math.exp(generator.uniform(math.log(1 / 32), math.log(32))) for _ in range(20_000)]
    assert sum(ratio_name(ratio, factors, 0.02) is not None for ratio in ratios) < 0.1 * len(ratios)
    near_one = [1 + generator.uniform(-0.4, 0.4) for _ in range(20_000)]
    assert not any(ratio_name(ratio, factors, 0.02) for ratio in near_one)


def test_ratios_of_several_documents_are_named_only_together() -> None:
    generator = random.Random(8)

    def drawn() -> float:
        return math.exp(generator.uniform(-2, 2))

    named = sum(common_ratio([(drawn(), FACTORS) for _ in range(3)], 0.02) is not None for _ in range(20_000))
    assert named <= 20


def test_each_document_may_have_a_factor_of_its_own() -> None:
    pairs = [(1 / 3, {DOCUMENTS: 3.0, "cp": 2.0}), (1 / 2, {DOCUMENTS: 2.0, "cp": 2.0}), (1.0, {"cp": 2.0})]
    assert common_ratio(pairs, 0.02) == f"x 1/{DOCUMENTS}"
    assert common_ratio([*pairs, (1.0, {DOCUMENTS: 2.0, "cp": 2.0})], 0.02) is None


def test_one_ratio_alone_names_nothing() -> None:
    assert common_ratio([(2.0, FACTORS)], 0.02) is None
    assert common_ratio([(2.0, FACTORS), (2.0, FACTORS)], 0.02) == "x cp"


def test_factors_are_those_of_the_layout_and_the_packs() -> None:
    factors = factors_of(evidence_for(config_of("sft", cp=2, pp=2)), 0)
    assert {name: factors[name] for name in ("cp", "pp")} == {"cp": 2.0, "pp": 2.0}
    assert DOCUMENTS not in factors  # packs of the mix hold different numbers of documents
    assert "tp" not in factors


def test_a_scale_needs_the_same_direction() -> None:
    right = Fingerprint(norm_sq=4.0, projections=[1.0, -2.0])
    double = Fingerprint(norm_sq=16.0, projections=[2.0, -4.0])
    other = Fingerprint(norm_sq=16.0, projections=[-3.0, 1.0])
    assert scale_of([(double, right)], 0.02) == pytest.approx(2.0)
    assert scale_of([(other, right)], 0.02) is None
    assert scale_of([(double, right), (right, right)], 0.02) is None
    assert scale_of([], 0.02) is None
