"""A matrix file of one cell, with the stack that it ran in. Pure."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from harness.core.cell.axes import axes
from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.timing import NOT_TIMED
from harness.core.data_paths.own import REFERENCE
from harness.core.data_paths.own import upstream_tests_as_written as upstream_tests_as_written
from harness.core.packing.options import PackingOptions
from harness.core.setting import keys_of
from harness.core.stack import ReadyStack, Stack
from harness.core.tolerances import ToleranceOverrides
from harness.plan.matrix.arguments import as_written as arguments_as_written
from harness.plan.schema.bounds import as_written
from harness.plan.schema.throughput import as_written as throughput_as_written
from harness.plan.stacks.section import layers_of

_PLAIN = CellConfig(layout=Layout(), data_path=REFERENCE.name)
_OWN_SECTION = (
    "args",
    "documents",
    "timed",
    "upstream_tests",
    *keys_of(PackingOptions),
)  # written in their sections, not as axes


def one_cell(
    config: CellConfig, *, name: str, stack: Stack | None = None, tolerances: ToleranceOverrides | None = None
) -> dict[str, Any]:
    """Values of a matrix file whose only cell is this one; if its documents are a built-in mix, the one for its cp.

    `stack`: definition of the cell's stack, None for the default one. An injected fault is left out.
    """
    bounds = tolerances or ToleranceOverrides()
    written: dict[str, Any] = {
        "name": name,
        "model": {key: value for key, value in asdict(config.model).items() if value is not None},
        "train": asdict(config.train),
        "documents": config.documents.section(),
        "matrix": _axes(config),
    }
    options = asdict(config.options)
    changed = {key: value for key, value in options.items() if value != getattr(_PLAIN.options, key)}
    written |= {"packing_options": changed} if changed else {}
    given = {argument.name: argument.words for argument in config.args.given}
    written |= {"args": arguments_as_written(given)} if given else {}
    if config.upstream_tests.name:
        written["upstream_tests"] = {config.upstream_tests.name: upstream_tests_as_written(config.upstream_tests)}
        written["matrix"]["upstream_tests"] = config.upstream_tests.name
    written |= {"stacks": {config.stack: layers_of(stack)}} if stack is not None else {}
    written["launch"] = {"deadline_s": config.deadline_s}
    written["checks"] = {"canaries": list(config.canaries)}
    written["checks"] |= {} if config.fingerprints else {"fingerprints": False}
    written["checks"] |= {"numerics": as_written(bounds.numerics)} if bounds.numerics else {}
    written["checks"] |= (
        {"throughput": throughput_as_written(config.timing, bounds.throughput)} if config.timing != NOT_TIMED else {}
    )
    return written


def pinned(stack: ReadyStack) -> Stack:
    """The stack with refs of checkouts replaced by the commits that they resolved to; working trees stay."""
    checkouts = [
        replace(item, ref=item.ref and stack.commits.get(item.package, item.ref)) for item in stack.requested.checkouts
    ]
    return replace(stack.requested, checkouts=tuple(checkouts))


def _axes(config: CellConfig) -> dict[str, Any]:
    plain = replace(_PLAIN, layout=replace(_PLAIN.layout, sp=config.layout.tp > 1))
    return {
        name: value
        for name, axis in axes().items()
        if name not in _OWN_SECTION and ((value := axis.of(config)) != axis.of(plain) or axis.setting.always)
    }
