"""`harness plan`, `harness verify` and `harness schema`: commands on matrix files. Nothing is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.errors import InputError, Problem
from harness.core.outcomes import EXIT_INPUT, EXIT_PASS
from harness.core.serialization import dumps
from harness.core.text import counted
from harness.infra import screen

if TYPE_CHECKING:
    from harness.launch.stacks.prepare import Forecast


def forecast_lines(stacks: Sequence[Forecast]) -> list[str]:
    return [line for stack in stacks for line in stack.lines()]


def any_to_make(stacks: Sequence[Forecast]) -> bool:
    return any(part.state == "to build" for stack in stacks for part in stack.parts)


def plan(matrix_file: Path, *, as_json: bool, all_rows: bool, cluster: str | None = None) -> int:
    """Print cells, rejected combinations and cost."""
    from harness.campaign.plan_text import plan_json, plan_text
    from harness.campaign.planning import expand_for, requested_stacks
    from harness.inputs.cluster_file import cluster_of
    from harness.inputs.matrix_file import read_matrix
    from harness.launch.allocations import job_costs, plan_allocations
    from harness.launch.local import cores
    from harness.launch.stacks.prepare import forecasts

    matrix = read_matrix(matrix_file)
    profile, _ = cluster_of(matrix, cluster)
    expansion = expand_for(matrix, profile)
    # On this machine there are no jobs to show.
    allocations = plan_allocations(expansion, profile, matrix.launch) if profile.kind == "slurm" else None
    jobs = job_costs(expansion, allocations or (), profile)
    stacks = forecasts(requested_stacks(expansion, matrix))
    shown: dict[str, Any] = {"cores": cores(), "jobs": jobs, "profiles": matrix.profiles}
    if as_json:
        screen.json_data(plan_json(expansion, allocations=allocations, stacks=stacks, **shown) + "\n")
    else:
        text = plan_text(
            expansion,
            all_rows=all_rows,
            stacks=forecast_lines(stacks),
            to_make=any_to_make(stacks),
            width=screen.width(),
            **shown,
        )
        screen.out(screen.wrapped(text))
    return EXIT_PASS


def verify(files: Sequence[Path], *, as_json: bool = False, ask: bool = False) -> int:
    """Check every file with the cluster profile it names; reports the problems of all files at once.

    `ask`: make the stacks, and let upstream's parser and validation check the arguments of cells too.
    """
    from harness.campaign import plan_run
    from harness.campaign.options import PlanOptions
    from harness.campaign.planning import expand_for
    from harness.inputs.cluster_file import cluster_of
    from harness.inputs.matrix_file import read_matrix

    problems: list[Problem] = []
    found: list[dict[str, Any]] = []
    for file in files:
        values: dict[str, Any] = {"file": str(file), "ok": True, "cells": 0, "rejected": 0, "problems": ()}
        try:
            matrix = read_matrix(file)
            expansion = expand_for(matrix, cluster_of(matrix)[0])
            if ask:
                plan_run.check_arguments(plan_run.prepare_stacks(plan_run.plan_run(file, PlanOptions())))
            found.append({**values, "cells": len(expansion.cells), "rejected": len(expansion.rejected)})
        except InputError as error:
            problems += error.problems
            found.append({**values, "ok": False, "problems": error.problems})
            continue
        if not as_json:
            screen.out(f"{file}: ok, {counted(len(expansion.cells), 'cell')}, {len(expansion.rejected)} rejected")
    if as_json:
        screen.json_data(dumps({"files": found}, indent=2) + "\n")
        return EXIT_INPUT if problems else EXIT_PASS
    if problems:
        raise InputError(problems)
    return EXIT_PASS


def schema() -> int:
    """Print the JSON Schema of matrix files."""
    import json

    from harness.matrix.schema.json_schema import json_schema

    screen.json_data(json.dumps(json_schema(), indent=2) + "\n")
    return EXIT_PASS
