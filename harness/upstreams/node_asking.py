"""Asks upstream about the arguments of cells, before any cell starts. Each trainer's node_arguments.py is a program:

    python -m harness.upstreams.PROJECT.node_arguments FILE     # FILE: the cells by id, as JSON

The last line of stdout is JSON: what is wrong with each cell, by id; cells without problems are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from harness.core.cell.arguments import OF_OPTIMIZER, Argument, Arguments
from harness.core.cell.config import CellConfig
from harness.core.cell.upstream_config import Difference, differences, listed
from harness.core.serialization import from_jsonable
from harness.runtime.device import cpu_stubs, trainer_stubs
from harness.runtime.device.placement import Device, choose_device
from harness.runtime.load import load
from harness.runtime.recording.errors import refusal_of, words_of


def ask(file: str, problem_of: Callable[[CellConfig], str]) -> None:
    """Print the answers. `problem_of`: why upstream does not accept a cell's arguments; empty if it does."""
    cells = {
        name: from_jsonable(CellConfig, config)
        for name, config in json.loads(Path(file).read_text(encoding="utf-8")).items()
    }
    load()
    for config in cells.values():
        device_of(config.device)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # required by upstream's validation with tp or cp
    found = {name: problem_of(config) for name, config in cells.items()}
    print(json.dumps({name: problem for name, problem in found.items() if problem}))


def refused(given: str, error: BaseException) -> str:
    """Return what upstream refuses, in its words. `given`: the cell's `args`, though the fault may be another
    argument.
    """
    kind = "" if isinstance(error, SystemExit) else f"{type(error).__name__}: "
    which = refusal_of(error)
    return f"upstream refuses {given}: {kind}{words_of(error)}{f' ({which})' if which else ''}"


# Part of a training run, such as its model -> fields and values of the configuration that upstream would build.
Built = Mapping[str, Mapping[str, str]]


def other_model(config: CellConfig, own: Built, build: Callable[[CellConfig], Built]) -> str:
    """Return which arguments of a cell train another model than the control has, and how; empty if none does.

    `own`: what upstream would build for the cell; `build` makes the same for other cells.
    """
    try:
        plain = build(replace(config, args=config.args.of_optimizer()))
    except (Exception, SystemExit):  # upstream needs some of them; what it builds is compared when the cell has run
        return ""
    found = _changed(own, plain)
    if not found:
        return ""
    guilty = [argument for argument in config.args.given if _matters(config, argument, own, build)]
    flags = " ".join(word for argument in guilty or config.args.given for word in argument.flag)
    return f"{flags} would train another model than the control: {listed(found, 'control')}"


def _changed(own: Built, other: Built) -> list[Difference]:
    return [found for part, values in own.items() for found in differences(values, other[part])]


def _matters(config: CellConfig, argument: Argument, own: Built, build: Callable[[CellConfig], Built]) -> bool:
    if argument.name in OF_OPTIMIZER:
        return False
    others = tuple(other for other in config.args.given if other != argument)
    try:
        return bool(_changed(own, build(replace(config, args=Arguments(others)))))
    except (Exception, SystemExit):  # upstream does not accept the others alone
        return True


@cache
def device_of(requested: str) -> Device:
    """Return the device of a rank. To be called first before `as_a_rank`, whose stubs claim that there is a GPU."""
    return choose_device(0, 1, requested)


def as_a_rank(config: CellConfig) -> Device:
    """Let upstream see what a rank of the cell would; returns the device."""
    device = device_of(config.device)
    os.environ |= {"WORLD_SIZE": str(config.layout.world_size), "LOCAL_WORLD_SIZE": "1"}
    if device.kind == "cpu":
        cpu_stubs.install()
        trainer_stubs.install()
    return device
