"""Limits on what several keys of a matrix amount to; limits of a single key are declared at its field."""

from __future__ import annotations

from dataclasses import replace

from harness.core.cell.config import ModelConfig, TrainConfig
from harness.core.cell.flops import weights_per_token
from harness.plan.matrix.axes import Axes
from harness.plan.matrix.problems import Problems

MOST_WEIGHTS = 2**40  # of a model: 4 TiB in fp32
MOST_DOCUMENTS = 2**16  # of all steps: planning generates each of them
MOST_ROWS = 2**17  # combinations that satisfy the constraints: each becomes a cell or a rejected cell
MOST_TESTS = 5_000_000  # of one combination against one row of include or exclude, one constraint or one entry


def size_problems(model: ModelConfig, train: TrainConfig) -> list[tuple[str, str]]:
    """Reasons why a cell is too large in every layout: (key, message with the arithmetic)."""
    found = []
    dense = replace(model, moe=replace(model.moe, topk=model.moe.experts)) if model.moe else model
    weights = weights_per_token(dense)
    if weights > MOST_WEIGHTS:
        found.append(("model", f"a model of {weights:,} weights is too large: at most {MOST_WEIGHTS:,}"))
    documents = train.steps * train.global_batch
    if documents > MOST_DOCUMENTS:
        sizes = f"steps {train.steps} x global_batch {train.global_batch} = {documents:,}"
        found.append(("train", f"too many documents: {sizes}, at most {MOST_DOCUMENTS:,}"))
    return found


def check_tests(axes: Axes, constraints: int, entries: int, problems: Problems) -> None:
    """Adds a problem if testing every combination against every row, constraint and entry takes too many tests."""
    against = len(axes.include) + len(axes.exclude) + constraints + entries
    tests = axes.count * against
    if tests > MOST_TESTS:
        found = f"{axes.count:,} combinations x {against:,} = {tests:,}"
        allowed, hint = f"at most {MOST_TESTS:,}", "split the matrix over several files"
        message = "too many combinations for so many rows of include, exclude, constraints, xfail and may_reject"
        problems.add(("matrix",), message, found=found, allowed=allowed, hint=hint)
