"""The combinations of a matrix that its constraints allow, each as two parts that many of them share.

A matrix may have 100,000 combinations of 40 values each. Their shapes are far fewer, and so are their other values, so
each part is kept once.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Callable, Iterator
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from harness.core.cell.arguments import PREFIX
from harness.core.cell.axes import axes
from harness.core.outcomes import NODE_RULES
from harness.core.packing.options import PackingOptions
from harness.core.setting import keys_of
from harness.plan.matrix.constraints import ConstraintError
from harness.plan.matrix.load import Matrix
from harness.plan.matrix.problems import Problems
from harness.plan.matrix.sizes import MOST_ROWS
from harness.plan.rules.table import ADDED, RULES

OPTIONS = tuple(keys_of(PackingOptions))
_LIMITS = {  # rules of where cells run, and what to do instead of lifting them
    "layout.world-size": "raise launch.max_ranks",
    "cluster.nodes": "choose sizes that the nodes of the cluster can hold",
    "stack.container": "use --cluster NAME: containers are started through Slurm",
}
_FIELDS = tuple(axis for axis in axes().values() if axis.field)  # axes that set a field of CellConfig
IN_SHAPE = {axis.field: axis.name for axis in _FIELDS if axis.setting.shape}  # field -> axis
OTHERS = {axis.field: axis.name for axis in _FIELDS if not axis.setting.shape}
NOT_IN_SHAPE = (*OTHERS.values(), "args", "timed", "upstream_tests")  # axes that a plan.rules.rule.Shape does not have
_OF_IDENTITY = ("packing", "micro_batch_size", "forbidden")  # of the shape, but hashed with what it does not have


def default_values(matrix: Matrix) -> dict[str, Any]:
    """Values of axes that a combination leaves out. `packing` has no default: every combination must name it."""
    values = {name: axis.default for name, axis in axes().items() if name != "packing"}
    values |= {name: getattr(matrix.options, name) for name in OPTIONS}
    values["documents"] = matrix.documents.label
    dotted = [name for name in matrix.axes.names if "." in name]
    return values | {name: None if name.startswith(PREFIX) else attrgetter(name)(matrix) for name in dotted}


def of_section(section: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a section's axes: {"model.layers": 8} gives {"layers": 8} for "model"."""
    return {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{section}.")}


class Origin(NamedTuple):
    """Where a combination comes from."""

    line: int | None
    included: bool  # made by an include row that extends no combination


class Parts:
    """Splits the values of a combination in two: those of its shape, and the others."""

    def __init__(self, matrix: Matrix) -> None:
        arguments = [name for name in matrix.axes.names if name.startswith(PREFIX)]
        names = dict.fromkeys([*default_values(matrix), *matrix.axes.names, "packing"])
        beyond = {*NOT_IN_SHAPE, *arguments} - {"trainer"}  # upstream's trainer may pack other rows
        self.shape_names = tuple(name for name in names if name not in beyond)
        self.own_names = (*NOT_IN_SHAPE, *arguments, *_OF_IDENTITY)
        self.shape_of: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(*self.shape_names)
        self.own_of: Callable[[dict[str, Any]], tuple[Any, ...]] = itemgetter(*self.own_names)


class Combinations:
    """Those that constraints allow, in matrix order; ones that differ in nothing are merged."""

    def __init__(self, matrix: Matrix, problems: Problems) -> None:
        """Adds what is wrong to `problems`; then the combinations are not complete."""
        parts = Parts(matrix)
        self.excluded: Counter[str] = Counter()  # constraint -> combinations it dropped
        self.found: dict[tuple[int, int], Origin] = {}  # index of the shape and of the other values -> origin
        shapes: dict[tuple[Any, ...], int] = {}
        others: dict[tuple[Any, ...], int] = {}
        for number, (values, origin) in enumerate(_allowed(matrix, self.excluded, problems)):
            if number == MOST_ROWS:
                hint = "drop some by constraints or exclude, or split the matrix over several files"
                allowed = f"at most {MOST_ROWS:,}"
                problems.add(("matrix",), "too many combinations are left", allowed=allowed, hint=hint)
                break
            shape = shapes.setdefault(parts.shape_of(values), len(shapes))
            own = others.setdefault(parts.own_of(values), len(others))
            if self.found.setdefault((shape, own), origin) is not origin and origin.included:
                self.found[shape, own] = self.found[shape, own]._replace(included=True)
        self._parts = parts
        self._shapes, self._others = tuple(shapes), tuple(others)
        _check_lifted(self, problems)

    @property
    def shapes(self) -> list[dict[str, Any]]:
        """Values by axis of every shape, by index."""
        return [self.shape(index) for index in range(len(self._shapes))]

    @property
    def largest_cp(self) -> int:
        return max((values["cp"] for values in self.shapes), default=1)

    def shape(self, index: int) -> dict[str, Any]:
        """Values by axis of a shape."""
        return dict(zip(self._parts.shape_names, self._shapes[index]))

    def own(self, index: int) -> dict[str, Any]:
        """The other values by axis, and those of the shape that are hashed with them."""
        return dict(zip(self._parts.own_names, self._others[index]))


def _allowed(matrix: Matrix, excluded: Counter[str], problems: Problems) -> Iterator[tuple[dict[str, Any], Origin]]:
    """Combinations with every axis filled in, less those that a constraint drops."""
    base = default_values(matrix)
    dotted = any("." in constraint.text for constraint in matrix.constraints)
    origins: dict[Origin, Origin] = {}
    for combination in matrix.axes.combinations():
        values = {**base, **combination.values}
        if "packing" not in values:
            problems.add(("matrix",), "a combination has no packing", hint="add the axis 'packing'")
            return
        if values["sp"] is None:
            values["sp"] = values["tp"] > 1
        values["world_size"] = values["tp"] * values["pp"] * values["cp"] * values["dp"]
        names = {**values, **_sections(matrix, values)} if dotted else values
        try:
            broken = next((constraint for constraint in matrix.constraints if not constraint.holds(names)), None)
        except ConstraintError as error:
            problems.add(("constraints",), str(error))
            return
        if broken is None:
            origin = Origin(combination.line, combination.included)
            yield values, origins.setdefault(origin, origin)
        else:
            excluded[broken.text] += 1


def _sections(matrix: Matrix, values: dict[str, Any]) -> dict[str, Any]:
    """The sections as constraints see them: with the combination's values of axes like `model.layers`."""
    return {
        name: dataclasses.replace(section, **of_section(name, values))
        for name, section in (("model", matrix.model), ("train", matrix.train))
    }


def _check_lifted(found: Combinations, problems: Problems) -> None:
    """Adds a problem for each value of the axis `lift` that is no rule's id, or a rule that cannot be lifted."""
    known = [rule.id for rule in (*RULES, *ADDED)] + [rule for rule, why in NODE_RULES.items() if not why]
    fixed = {rule: why for rule, why in NODE_RULES.items() if rule not in known} | _LIMITS
    lifted = [values["lift"] for values in found.shapes]
    for name, line in {lifted[shape]: origin.line for (shape, _), origin in found.found.items()}.items():
        if name in fixed:
            problems.add_at(line, ("matrix", "lift"), "this rule cannot be lifted", found=repr(name), hint=fixed[name])
        elif name and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/rules.md lists the rules"
            problems.add_at(line, ("matrix", "lift"), "no such rule", found=repr(name), hint=hint)
