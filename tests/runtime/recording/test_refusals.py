"""Configurations that upstream refuses, by stand-ins for its files in a folder of packages, and the verdict on each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.run.records import Failure, Progress
from harness.judge.failures.classification import blame_of
from harness.runtime.device import cpu_stubs
from harness.runtime.recording.errors import frames_of, refusal_of, words_of

ARGUMENTS = """
import argparse

def parse_args(words):
    parser = argparse.ArgumentParser(prog="pretrain_gpt.py", allow_abbrev=False)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--window", type=int)
    parser.add_argument("--batch", type=lambda text: None if text == "none" else int(text), default=1)
    return parser.parse_args(words)

def validate_args(args):
    if args.batch > 8: print("large")
    if args.steps > 100 and (
        args.lr is not None
    ):
        raise ValueError("too many steps")
    _positive(args)
    assert args.window is not None, "the window must be known"

def _positive(args):
    if args.lr > 0:
        return
    raise ValueError("it must be positive")
"""
CONFIGURED = """
from dataclasses import dataclass

@dataclass
class ModelConfig:
    topk: int = 2
    score: str = "softmax"

    def __post_init__(self):
        if self.topk == 1 and self.score == "softmax":
            raise ValueError("topk 1 needs another score")

@dataclass
class Container:
    model: ModelConfig

    def finalize(self):
        assert self.model.score == "sigmoid"

class RunConfigContainer(Container):
    def validate(self):
        self.finalize()

@dataclass
class PackedParams:
    longest: int = 0

    def __post_init__(self):
        assert self.longest > 0

def forward(args):
    assert args.steps == 0
"""


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Both files as modules whose frames count as code under test."""
    folder = tmp_path_factory.mktemp("upstream") / "site-packages" / "megatron"
    folder.mkdir(parents=True)
    found = {}
    for name, text in (("arguments", ARGUMENTS), ("configured", CONFIGURED)):
        (folder / f"{name}.py").write_text(text)
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None and spec.loader is not None
        found[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    return type("Upstream", (), found)


def validated(*words: str) -> Callable[[Any], Any]:
    return lambda upstream: upstream.arguments.validate_args(upstream.arguments.parse_args(words))


REFUSED: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "an argument that the parser needs": (
        validated("--lr=1"),
        "the following arguments are required: --steps",
        "upstream refuses the configuration",
    ),
    "an argument that the parser lacks": (
        validated("--steps=1", "--sft"),
        "unrecognized arguments: --sft",
        "upstream refuses the configuration",
    ),
    "a comparison with an argument that is not set": (
        validated("--steps=1"),
        "'>' not supported between instances of 'NoneType' and 'int'",
        "upstream needs --lr, which is not set",
    ),
    "a condition and what it does on one line": (
        validated("--steps=1", "--batch=none"),
        "'>' not supported between instances of 'NoneType' and 'int'",
        "upstream needs --batch, which is not set",
    ),
    "an assertion": (
        validated("--steps=1", "--lr=2"),
        "the window must be known",
        "upstream needs --window, which is not set",
    ),
    "a condition over several lines": (
        validated("--steps=101", "--lr=2"),
        "too many steps",
        "upstream refuses --steps 101, --lr 2.0",
    ),
    "a field": (
        lambda upstream: upstream.configured.ModelConfig(topk=1),
        "topk 1 needs another score",
        "upstream refuses topk 1, score softmax",
    ),
    "a field that it lacks": (
        lambda upstream: upstream.configured.ModelConfig(experts=4),
        "ModelConfig.__init__() got an unexpected keyword argument 'experts'",
        "upstream's ModelConfig has other fields",
    ),
    "a field of a part": (
        lambda upstream: upstream.configured.RunConfigContainer(upstream.configured.ModelConfig()).validate(),
        "",
        "upstream refuses model.score softmax",
    ),
}


def raised(act: Callable[[Any], Any], upstream: Any) -> BaseException:
    with pytest.raises(BaseException) as caught:
        act(upstream)
    return caught.value


def blamed(error: BaseException, **progress: Any) -> tuple[str, str]:
    failure = Failure(
        type=type(error).__name__,
        message=words_of(error),
        traceback="",
        time=1.0,
        frames=frames_of(error),
        refused=refusal_of(error),
    )
    found = blame_of(failure, Progress(**progress))
    return found.domain, found.pattern.name


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_arguments_and_their_values_and_is_not_the_codes_fault(name: str, upstream: Any) -> None:
    act, words, which = REFUSED[name]
    error = raised(act, upstream)
    assert (words_of(error), refusal_of(error)) == (words, which)
    assert blamed(error, leg="metadata", phase="setup") == ("unknown", "configuration")
    assert blamed(error, leg="training", phase="forward")[0] == "code"


def test_a_stub_of_the_harness_that_validation_calls_is_the_harnesss_fault(upstream: Any) -> None:
    class Device:
        """As an argument whose comparison with 0 calls the harness."""

        def __gt__(self, other: Any) -> Any:
            return cpu_stubs._thd_get_partitioned_indices(torch.tensor([0, 8]), 16, 2, 0)

    args = upstream.arguments.parse_args(["--steps=1"])
    args.lr = Device()
    error = raised(lambda upstream: upstream.arguments.validate_args(args), upstream)
    assert (refusal_of(error), blamed(error, leg="metadata", phase="setup")[0]) == ("", "harness")


@pytest.mark.parametrize(
    "act",
    [
        lambda upstream: upstream.configured.PackedParams(),
        lambda upstream: upstream.configured.forward(upstream.arguments.parse_args(["--steps=1"])),
    ],
    ids=["a class of data", "a function that reads arguments"],
)
def test_an_error_of_other_code_is_no_refusal(act: Callable[[Any], Any], upstream: Any) -> None:
    error = raised(act, upstream)
    assert refusal_of(error) == ""
    assert blamed(error, leg="metadata", phase="setup") == ("code", "python-exception")
