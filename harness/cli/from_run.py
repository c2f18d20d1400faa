"""`--from FILE`: a matrix for a training run that somebody has, from its command, script, log or configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cli.scaffold import TEMPLATES, Machine, software_for
from harness.core.cell.axis_values import HARNESS
from harness.core.cell.layout import Layout
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.secrets import without_secrets
from harness.core.text import counted
from harness.infra.files import MIB, read_text
from harness.infra.screen import environment_secrets
from harness.infra.templating import environment
from harness.inputs import yaml_file
from harness.inputs.configurations import found, load, with_defaults, with_sourced
from harness.inputs.stand_ins import commands_of
from harness.inputs.working_tree import working_tree
from harness.launch.stacks.node_code import BuiltRecipe, built_recipe
from harness.launch.stacks.prepare import prepare
from harness.matrix.intake.read import read, translate
from harness.matrix.intake.sections import origin, sections
from harness.matrix.intake.shrink import shrink
from harness.matrix.problems import Problems
from harness.matrix.stacks.section import recipe_stack
from harness.reporting.console import say
from harness.upstreams.megatron_bridge.project import MEGATRON_BRIDGE
from harness.upstreams.megatron_bridge.spec import BRIDGE

STDIN = "-"
RECIPE = "recipe:"  # in front of the name of one of Megatron-Bridge's
_MAX_BYTES = 64 * MIB  # of a log
_RANKS_ON_A_CPU = 8  # that any machine runs in minutes


def matrix_of_run(file: str, machine: Machine, path: Path, *, execute: bool = False) -> str:
    """Return the text of a matrix for the training run in a file, on stdin for "-", or of a recipe for "recipe:NAME".

    `path`: of the matrix, as its user would name it. `execute`: the file is a script, to be run with stand-ins.
    InputError for a text in which no training run is found.
    """
    if execute and (file == STDIN or file.startswith(RECIPE)):
        raise InputError(Problem(key="--execute", message="needs a file", hint="write the script to a file"))
    recipe = _recipe(file, machine) if file.startswith(RECIPE) else None
    text = recipe.yaml if recipe else sys.stdin.read() if file == STDIN else read_text(Path(file), _MAX_BYTES)
    source = "standard input" if file == STDIN else file
    beside = Path() if file == STDIN else Path(file).parent

    def configuration(name: str) -> Mapping[str, Any] | None:
        there = found(name, beside)
        return load(there) if there else None

    try:
        if execute:
            run = read(commands_of(Path(file)), None, source, configuration)
        else:
            written = _as_yaml(text)
            own = with_defaults(written, beside / Path(file).name) if isinstance(written, dict) else written
            run = read(with_sourced(text, beside), own, source, configuration)
        if recipe:
            run = replace(run, ranks=recipe.ranks)
        result = translate(run)
    except ValueError as error:
        advice = "or let `--execute` run the script, with stand-ins for torchrun, python and srun that train nothing"
        hint = advice if text.startswith("#!") and not execute else None
        raise InputError(Problem(message=str(error), file=source, key="--from", hint=hint)) from error
    most_ranks = max(machine.gpus, _RANKS_ON_A_CPU, machine.cores)
    shrunk = shrink(result.keys, most_ranks)
    software = software_for(machine, result.project, result.trainer)
    parts = sections(result, shrunk, trainer=software.trainer)
    lists = without_secrets(origin(result, shrunk, run.source, trainer=software.trainer), environment_secrets())
    values: dict[str, Any] = {
        "source": run.source,
        "path": path,
        "name": path.stem if path.stem != "matrix" else "your_run",
        "model": _flow(parts["model"]),
        "train": _flow(parts["train"]),
        "documents": result.documents,
        "options": _flow(parts["packing_options"]) if parts["packing_options"] else "",
        "args": [(name, _flow(value)) for name, value in parts["args"].items()],
        "passed_to": "the optimizer" if software.trainer == HARNESS else "upstream's trainer",
        "layouts": _layouts(shrunk.layouts, most_ranks),
        "axes": [(name, _flow(value)) for name, value in parts["axes"].items()],
        "stack": software.stack,
        "why": software.why,
        "layers": list(map(_flow, software.layers)),
        "origin": {
            "source": json.dumps(lists["source"]),
            "kept": map(json.dumps, lists["kept"]),
            "shrunk": list(map(json.dumps, lists["shrunk"])),
            "not_tested": [(json.dumps(why_), map(json.dumps, texts)) for why_, texts in lists["not_tested"].items()],
        },
    }
    return environment(TEMPLATES, autoescape=False, finalize=str).get_template("matrix_from_run.yaml.j2").render(values)


def _recipe(name: str, machine: Machine) -> BuiltRecipe:
    """Return a recipe of Megatron-Bridge as the stack builds it that its matrix will have, which is made first.

    InputError if it has no such recipe, or cannot build it.
    """
    software = software_for(machine, MEGATRON_BRIDGE.name, BRIDGE.name)
    problems = Problems(file=name, lines={})
    stacks = recipe_stack(software.stack, problems, str, working_tree)
    problems.raise_any()
    stack = prepare(stacks.values(), say)[software.stack]
    if stack.error:
        raise InfrastructureError(f"{name} needs the stack {software.stack}, which cannot be used: {stack.error}")
    try:
        return built_recipe(stack, name.removeprefix(RECIPE))
    except ValueError as error:
        raise InputError(Problem(message=str(error), file=name, key="--from")) from error


def _as_yaml(text: str) -> Any:
    """Return the text as YAML; None if it is none, as commands and logs are not."""
    try:
        return yaml_file.parsed(text, "--from").values
    except InputError:
        return None


def _layouts(layouts: tuple[Mapping[str, Any], ...], most_ranks: int) -> list[dict[str, Any]]:
    """Return the layouts as text, and whether this machine runs them."""
    found = []
    for number, layout in enumerate(layouts):
        ranks = Layout(**layout).world_size
        runs = ranks <= most_ranks
        note = (
            "the run's own layout" if number == 0 else "a part of it that this machine runs"
        ) + f": {counted(ranks, 'rank')}"
        note += "" if runs else "; remove the # where there are as many cores or GPUs"
        found.append({"text": _flow(layout), "note": note, "runs": runs})
    return found


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    plain = isinstance(value, str) and value.replace("_", "").replace("-", "").isalnum() and not value[:1].isdigit()
    return value if plain and value not in ("on", "off", "yes", "no", "null", "true", "false") else json.dumps(value)
