from __future__ import annotations

import pytest

from harness.core.cell.arguments import Argument, Arguments, label_of, merged
from harness.core.serialization import dumps, from_jsonable, loads

CLIP = Argument(name="clip_grad", words=("0.5",))
OVERLAP = Argument(name="overlap_grad_reduce")
MODULES = Argument(name="recompute_modules", words=("core_attn", "mlp"))
BOTH = Arguments((CLIP, OVERLAP), profile="nightly", label="nightly")


@pytest.mark.parametrize(
    ("argument", "flag", "label"),
    [
        (CLIP, ("--clip-grad=0.5",), "clip-grad-0.5"),
        (OVERLAP, ("--overlap-grad-reduce",), "overlap-grad-reduce"),
        (MODULES, ("--recompute-modules", "core_attn", "mlp"), "recompute-modules-core_attn-mlp"),
        (Argument(name="shift", words=("-1",)), ("--shift=-1",), "shift--1"),
        (Argument(name="spec", words=("a/b c",)), ("--spec=a/b c",), "spec-abc"),
    ],
)
def test_an_argument_is_a_flag_and_a_part_of_a_name(argument: Argument, flag: tuple[str, ...], label: str) -> None:
    assert (argument.flag, argument.label) == (flag, label)


def test_long_arguments_are_cut_in_a_name_which_is_a_file_name() -> None:
    given = {"spec": ("x" * 70,), "other": ("y" * 70,)}
    assert label_of(given, "nightly") == f"nightly-spec-{'x' * 67}"
    assert Arguments(merged({"clip_grad": ("1" * 200,)})).of_optimizer().label == f"clip-grad-{'1' * 70}"


def test_a_later_layer_wins_and_null_leaves_an_argument_out() -> None:
    first: dict[str, tuple[str, ...] | None] = {"clip_grad": ("1.0",), "overlap_grad_reduce": (), "seed": ("1",)}
    assert merged(first, {"clip_grad": ("0.5",), "seed": None}) == (CLIP, OVERLAP)


def test_values_are_read_by_name() -> None:
    assert (BOTH.text("clip_grad"), BOTH.text("overlap_grad_reduce"), BOTH.text("lr")) == ("0.5", "on", "")
    assert BOTH.numbers() == {"clip_grad": 0.5}
    assert BOTH.flags() == ["--clip-grad=0.5", "--overlap-grad-reduce"]


def test_a_control_keeps_the_arguments_of_the_optimizer() -> None:
    assert BOTH.of_optimizer() == Arguments((CLIP,), label="clip-grad-0.5")
    assert Arguments((OVERLAP,)).of_optimizer() == Arguments()


@pytest.mark.parametrize(
    ("given", "axis", "expected"),
    [
        ({}, "full", "full"),
        ({"recompute_granularity": ("selective",)}, "none", "selective"),
        ({"recompute_activations": ()}, "none", "selective"),
        ({"recompute_granularity": ("selective",), "recompute_modules": ("mlp",)}, "none", "none"),
        ({"recompute_granularity": ("selective",), "recompute_modules": ("mlp", "core_attn")}, "none", "selective"),
        ({"recompute_modules": ("mlp",)}, "full", "full"),
    ],
)
def test_recompute_arguments_decide_before_the_axis(
    given: dict[str, tuple[str, ...] | None], axis: str, expected: str
) -> None:
    assert Arguments(merged(given)).effective_recompute(axis) == expected


@pytest.mark.parametrize(("method", "expected"), [("block", 1), ("uniform", None)])
def test_only_the_method_block_leaves_layers_out(method: str, expected: int | None) -> None:
    given = merged({"recompute_method": (method,), "recompute_num_layers": ("1",)})
    assert Arguments(given).recomputed_layers == expected


def test_json_keeps_them() -> None:
    assert from_jsonable(Arguments, loads(dumps(BOTH))) == BOTH
