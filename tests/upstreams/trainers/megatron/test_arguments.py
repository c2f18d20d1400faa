"""Upstream's own parser, of the installed wheel, on the arguments of cells."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.config import CellConfig
from harness.core.cell.model import ModelConfig
from harness.core.cell.upstream_config import HARMLESS, unread
from harness.core.serialization import dumps
from harness.features.experts.config import MoeConfig
from harness.matrix.arguments import owner_of
from tests import forked
from tests.oracle.test_fields import defaults
from tests.runtime.conftest import config

ASK = """
import runpy
runpy.run_module("harness.upstreams.megatron_lm.node_arguments", run_name="__main__", alter_sys=False)
"""
GIVEN: dict[str, dict[str, tuple[str, ...] | None]] = {
    "accepted": {"clip_grad": ("0.5",), "recompute_granularity": ("selective",)},
    "several words": {"recompute_granularity": ("selective",), "recompute_modules": ("core_attn", "mlp")},
    "unknown": {"clip_grud": ("0.5",)},
    "not a choice": {"recompute_granularity": ("some",)},
    "not a number": {"init_method_std": ("wide",)},
    "refused together": {"recompute_granularity": ("full",)},
    "refused by the layout": {"overlap_param_gather": ()},
    "another optimizer": {"apply_wd_to_qk_layernorm": (), "overlap_grad_reduce": ()},
    "another reduction": {"grad_reduce_in_bf16": ()},
    "another loss": {"cross_entropy_loss_fusion": ()},
    "another constructor": {"rotary_percent": ("0.5",)},
    "another model": {"attention_output_gate": (), "clip_grad": ("0.5",), "overlap_grad_reduce": ()},
}


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    one = ModelConfig(moe=MoeConfig(topk=1))
    cells = {name: cell(layer) for name, layer in GIVEN.items()}
    cells["another reduction"] = replace(cells["another reduction"], dtype="bf16")  # in fp32 the argument does nothing
    cells["one expert per token"] = replace(cells["accepted"], model=one)
    return answers(cells, tmp_path_factory.mktemp("cells") / "cells.json")


def answers(cells: dict[str, CellConfig], file: Path) -> dict[str, str]:
    """What is wrong with each cell, of those with which something is."""
    file.write_text(dumps(cells))
    found: dict[str, str] = json.loads(forked.run(ASK, str(file)).splitlines()[-1])
    return found


def cell(layer: dict[str, tuple[str, ...] | None]) -> CellConfig:
    return replace(config("sft", tp=2), trainer="megatron", device="cpu", args=Arguments(merged(layer)))


@pytest.mark.parametrize("name", ["accepted", "several words", "one expert per token"])
def test_arguments_that_upstream_takes_have_no_problem(name: str, problems: dict[str, str]) -> None:
    assert name not in problems


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("unknown", "--clip-grud is not an argument of this release; did you mean --clip-grad?"),
        ("not a choice", "--recompute-granularity=some: argument --recompute-granularity: invalid choice: 'some'"),
        ("not a number", "--init-method-std=wide: argument --init-method-std: invalid float value: 'wide'"),
        ("refused together", "--recompute-granularity=full: "),
        ("refused by the layout", "--overlap-param-gather: "),
    ],
)
def test_a_problem_is_in_upstreams_words(name: str, expected: str, problems: dict[str, str]) -> None:
    assert problems[name].removeprefix("upstream refuses ").startswith(expected)


def test_a_problem_names_the_arguments_that_upstream_read(problems: dict[str, str]) -> None:
    """One of those that the harness sets may be the wrong one."""
    assert "(upstream refuses --use-distributed-optimizer False, " in problems["refused by the layout"]


@pytest.mark.slow
def test_a_release_without_the_trainer_leaves_the_answer_to_the_cell(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['megatron.training.arguments'] = None\n"
        "from harness.upstreams.megatron_lm.node_arguments import problem_of\n"
        "from tests.upstreams.trainers.megatron.test_arguments import GIVEN, cell\n"
        "print(repr(problem_of(cell(GIVEN['unknown']))))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "''"


def test_an_argument_that_no_table_names_is_found_by_the_configuration_that_it_makes(problems: dict[str, str]) -> None:
    expected = (
        "--attention-output-gate would train another model than the control: attention_output_gate true, control "
    )
    assert problems["another model"] == f"{expected}upstream's default"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("another optimizer", "--apply-wd-to-qk-layernorm would train another model than the control: apply_wd_to_"),
        ("another reduction", "--grad-reduce-in-bf16 would train another model than the control: accumulate_allreduce"),
        ("another loss", "--cross-entropy-loss-fusion would train another model than the control: cross_entropy_loss_"),
        ("another constructor", "--rotary-percent=0.5 would train another model than the control: rotary_percent 0.5"),
    ],
)
def test_optimizer_ddp_and_constructor_are_compared_too(name: str, expected: str, problems: dict[str, str]) -> None:
    assert problems.get(name, "").startswith(expected)


def switches() -> dict[str, str]:
    """Argument -> the field that it sets to another value than its default, of all switches that a release may have."""
    known = [item for values in defaults().values() for item in values.items()]
    found = {f"{start}{name}": name for name, default in known if default == "false" for start in ("", "ddp_")}
    found |= {f"{start}{name}": name for name, default in known if default == "true" for start in ("no_", "disable_")}
    return {argument: name for argument, name in found.items() if owner_of(argument) is None and not unread(name, {})}


@pytest.mark.slow
def test_exactly_the_switches_of_harmless_fields_can_be_passed_on(tmp_path: Path) -> None:
    """What may differ from the control, and what the oracle does not model, have one table."""
    may_differ = set(chain.from_iterable(HARMLESS.values()))
    cells = {argument: replace(cell({argument: ()}), dtype="bf16") for argument in switches()}
    found = answers(cells, tmp_path / "cells.json")
    own = {argument: name for argument, name in switches().items() if "upstream refuses" not in found.get(argument, "")}
    own = {argument: name for argument, name in own.items() if "is not an argument" not in found.get(argument, "")}
    assert {"apply_query_key_layer_scaling", "fp32_residual_connection"} <= own.keys()
    wrong = {argument for argument, name in own.items() if (argument in found) is (name in may_differ)}
    assert wrong == set(), {argument: found.get(argument, "accepted") for argument in wrong}
