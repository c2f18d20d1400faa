from __future__ import annotations

from typing import Any

import pytest

from harness.core.cell.config import ModelConfig, TrainConfig
from harness.core.errors import InputError
from harness.features.experts.config import MoeConfig
from harness.matrix.axes import size_problems
from harness.matrix.expansion.expand import expand
from tests.matrix.helpers import matrix_of


def plan(**values: Any) -> None:
    expand(matrix_of({"name": "t", "matrix": {"packing": "sft"}} | values))


THOUSAND = list(range(1, 1001))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"matrix": {"packing": "sft", "tp": THOUSAND, "pp": THOUSAND, "cp": THOUSAND}},
            "too many combinations (found 1000 x 1000 x 1000 = 1,000,000,000; allowed: at most 1,000,000; split",
        ),
        (
            {"matrix": {"packing": "sft", "tp": THOUSAND, "pp": THOUSAND, "exclude": [{"cp": 1}] * 21, "cp": 1}},
            "found 1,000,000 combinations x 21 = 21,000,000; allowed: at most 5,000,000",
        ),
        (
            {"matrix": {"packing": "sft", "tp": THOUSAND, "pp": THOUSAND}},
            "too many combinations are left (allowed: at most 20,000; give",
        ),
        ({"train": {"steps": 1000, "global_batch": 1000}}, "steps 1000 x global_batch 1000 = 1,000,000, at most"),
        ({"train": {"global_batch": 1000}, "matrix": {"packing": "sft", "train.steps": [1, 1000]}}, "steps1000"),
        ({"model": {"layers": 1000, "hidden": 131072, "ffn": 1048576}}, "weights is too large: at most"),
        (
            {"matrix": {f"model.{key}": [1, 2, 4, 8, 16] for key in ("layers", "vocab", "ffn")} | {"packing": "sft"}},
            "must be at least 8",
        ),
    ],
)
def test_products_that_are_too_large_are_refused_before_expansion(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(**values)
    assert expected in str(caught.value)


def test_all_experts_count_not_only_those_of_one_token() -> None:
    model = ModelConfig(layers=1000, hidden=8192, moe=MoeConfig(experts=4096, topk=1, ffn=8192))
    ((key, message),) = size_problems(model, TrainConfig())
    assert key == "model"
    assert "too large" in message


def test_a_selection_with_too_many_tuples_is_refused() -> None:
    axes = {key: [False, True] for key in ("timed", "metadata", "calculate_per_token_loss", "average_in_collective")}
    axes |= {"tp": [1, 2, 4], "pp": [1, 2, 4], "dp": [1, 2, 4], "dtype": ["fp32", "bf16"], "packing": ["sft"]}
    axes |= {"attention": ["auto", "reference", "te"], "device": ["auto", "cpu"], "micro_batch_size": [1, 2, 4]}
    with pytest.raises(InputError, match=r"select: too much to cover \(found [\d,]+ sets of 6 values"):
        plan(matrix=axes, select={"covering": 6}, launch={"max_ranks": 4096})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("train", "steps", 10**12),
        ("train", "seed", 2**64),
        ("model", "layers", 10**9),
        ("model", "vocab", 10**17),
        ("launch", "throttle", 10**9),
        ("matrix", "tp", 10**9),
        ("matrix", "pad_seq_to_mult", 10**9),
    ],
)
def test_an_absurd_number_is_refused_at_its_key(section: str, key: str, value: int) -> None:
    values = {"matrix": {"packing": "sft"}}
    values.setdefault(section, {})[key] = value
    with pytest.raises(InputError, match=rf"{section}.{key}: must be at most \d+ \(found {value}"):
        plan(**values)
