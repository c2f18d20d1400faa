"""Asks upstream's own parser and validation about the arguments of cells: see upstreams/node_asking.py."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import inspect
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

from harness.core.cell.config import CellConfig
from harness.probe.built import text_of, values_of
from harness.runtime.process import end_process
from harness.upstreams.megatron_lm import node_sft_checkout
from harness.upstreams.megatron_lm.node_flags import flags
from harness.upstreams.node_asking import Built, as_a_rank, ask, other_model, refused

_NO_FOLDER = Path("data")  # of the files that a cell would read; nothing is read here


def problem_of(config: CellConfig) -> str:
    """Return why this stack's pretrain_gpt.py does not accept the cell's arguments; empty if it does.

    An unknown argument comes with the nearest one that upstream has.
    """
    try:
        upstream: Any = importlib.import_module("megatron.training.arguments")
    except ImportError:
        return ""  # this release has no such trainer, which the cell itself says
    accepted = _flags(upstream)
    for argument in config.args.given:
        flag = f"--{argument.name.replace('_', '-')}"
        if flag not in accepted:
            near = difflib.get_close_matches(flag, accepted, n=1)
            return f"{flag} is not an argument of this release{f'; did you mean {near[0]}?' if near else ''}"
    try:
        built = _built(config)
    except (Exception, SystemExit) as error:  # upstream asserts, raises and exits
        return refused(" ".join(config.args.flags()), error)
    return other_model(config, built, _built)


@cache
def _flags(upstream: Any) -> list[str]:
    # Without abbreviations: upstream's parser takes them, but a later release may make one ambiguous.
    parser = upstream.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    return [option for option in parser._option_string_actions if option.startswith("--")]


@cache  # many cells are compared with the same one
def _built(config: CellConfig) -> Built:
    """Return the configuration of the model as the script would build it, which also refuses some arguments.

    DDP, the optimizer and the model's constructor get the arguments that have the names of their fields, or of DDP's
    with a prefix.
    """
    upstream: Any = importlib.import_module("megatron.training.arguments")
    distributed: Any = importlib.import_module("megatron.core.distributed")
    optimizer: Any = importlib.import_module("megatron.core.optimizer")
    gpt: Any = importlib.import_module("megatron.core.models.gpt.gpt_model")
    words = flags(config, _NO_FOLDER, as_a_rank(config))
    with node_sft_checkout.command_line(words), redirect_stdout(sys.stderr):
        args = upstream.parse_args()
        upstream.validate_args(args, {})
        model = values_of("model", upstream.core_transformer_config_from_args(args))

    def given(names: Iterable[str], prefix: str = "") -> dict[str, str]:
        return {name: text_of(getattr(args, prefix + name)) for name in names if hasattr(args, prefix + name)}

    def fields(kind: Any, prefix: str = "") -> dict[str, str]:
        return given((field.name for field in dataclasses.fields(kind)), prefix)

    return {
        "model": model,
        "constructor": given(inspect.signature(gpt.GPTModel).parameters),
        "ddp": fields(distributed.DistributedDataParallelConfig)
        | fields(distributed.DistributedDataParallelConfig, "ddp_")
        | given(["accumulate_allreduce_grads_in_fp32"]),
        "optimizer": fields(optimizer.OptimizerConfig),
    }


if __name__ == "__main__":
    ask(sys.argv[1], problem_of)
    end_process(0)
