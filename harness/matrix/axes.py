"""The `matrix:` section: axes that multiply, tied lists, include and exclude, as in GitHub Actions; and `select`.

A key that names an axis holds one value or a list of values. Any other key holds a list of mappings whose
keys are axes that vary together. Axes may also be packing options and `model.<key>` or `train.<key>`. What several
keys amount to is limited; limits of a single key are declared at its field.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.core.cell.arguments import PREFIX
from harness.core.cell.axes import SECTIONS, axes, dotted
from harness.core.cell.config import ModelConfig, TrainConfig
from harness.core.cell.flops import weights_per_token
from harness.core.setting import aliases_of
from harness.matrix.arguments import INVALID, parse_axis_value
from harness.matrix.problems import KeyPath, Problems, shown
from harness.matrix.schema.section import model_of, model_with
from harness.matrix.schema.sections import MODEL_PARTS, PAIRS, SELECT_NAMES, CoveringSection

AXES = tuple(axes())
DOTTED = tuple(dotted())
_OPEN = ("model.<key>", "train.<key>", f"{PREFIX}<argument>")
AXIS_ALIASES = {alias: name for name, axis in axes().items() for alias in axis.aliases}
ALIASES = AXIS_ALIASES | {
    f"{section}.{alias}": f"{section}.{key}"
    for section, kind in SECTIONS.items()
    for alias, key in aliases_of(kind).items()
}
AxisRow = model_with(
    "AxisRow",
    "Values of some axes: one combination, or a row of include, exclude or a tied list.",
    [replace(axis, default=None) for axis in axes().values()],
)
CONTRACTS = "what upstream refuses, and its unit tests, are checked by the command `harness contracts`"
REMOVED = {
    **dict.fromkeys(("forbidden", "upstream_tests"), f"{CONTRACTS}; delete it"),
    "model.cuda_graphs": "delete it: every cell with it was rejected, since ranks read values in every layer, which a "
    "captured graph does not allow; what upstream refuses with CUDA graphs is checked by `harness contracts`",
}
_REMOVED_VALUES = {
    **dict.fromkeys((("packing", "rules"), ("packing", "upstream_tests")), f"{CONTRACTS}; delete these cells"),
    ("dtype", "fp8"): "use bf16: every cell with it was rejected, since the model has no recipe of fp8",
}
_TIED_HINT = "a list of mappings ties axes together, e.g. layout: [{tp: 2, pp: 4}, {tp: 1, pp: 2}]"
MAX_COMBINATIONS = 1_000_000


class Row(NamedTuple):
    """Values of some axes, and the line they come from."""

    values: dict[str, Any]
    line: int | None
    included: bool = False  # made by an include row that extends no combination


@dataclass(frozen=True)
class Axes:
    """The parsed section: dimensions multiply; include and exclude rows are partial combinations."""

    dimensions: tuple[tuple[Row, ...], ...]
    include: tuple[Row, ...] = ()
    exclude: tuple[Row, ...] = ()
    line: int | None = None

    @property
    def names(self) -> list[str]:
        """Every axis that the section names, in file order."""
        rows = itertools.chain(*self.dimensions, self.include)
        return list(dict.fromkeys(name for row in rows for name in row.values))

    @property
    def count(self) -> int:
        """The number of combinations of the dimensions."""
        return math.prod(len(rows) for rows in self.dimensions) if self.dimensions else 0

    def combinations(self) -> Iterator[Row]:
        """Yield all combinations, with GitHub's meaning of include and exclude.

        An include row extends every combination in which it overwrites no value of an axis of the matrix; a row
        that extends none becomes a new combination.
        """
        used: set[int] = set()
        for original, line in self._product():
            if self.exclude and any(_matches(row.values, original) for row in self.exclude):
                continue
            values = original
            for number, row in enumerate(self.include):
                if _extends(row.values, original):
                    used.add(number)
                    values = {**values, **row.values}
            yield Row(values, line)
        yield from (row._replace(included=True) for number, row in enumerate(self.include) if number not in used)

    def _product(self) -> Iterator[tuple[dict[str, Any], int | None]]:
        """Yield the values of every combination, and the line of its first tied list.

        The last dimension varies fastest.
        """
        if not self.dimensions:
            return
        tied = next((index for index, rows in enumerate(self.dimensions) if len(rows[0].values) > 1), None)
        for rows in itertools.product(*self.dimensions):
            line = None if tied is None else rows[tied].line
            yield {name: value for row in rows for name, value in row.values.items()}, line or self.line


def _extends(row: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether an include row overwrites no value of an axis of the matrix."""
    for name, value in row.items():  # noqa: SIM110 - runs for every combination; a generator takes three times as long
        if values.get(name, value) != value:
            return False
    return True


def _matches(pattern: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    return all(name in values and values[name] == value for name, value in pattern.items())


def parse_axes(section: Any, problems: Problems) -> Axes:
    """Return the `matrix:` section; everything wrong with it is added to `problems`."""
    path: KeyPath = ("matrix",)
    values = problems.canonical(section, ALIASES, path)
    if values is None:
        return Axes(())
    include = _rows(values.pop("include", []), (*path, "include"), problems)
    exclude = _rows(values.pop("exclude", []), (*path, "exclude"), problems)
    dimensions = [_dimension(name, value, (*path, name), problems) for name, value in values.items()]
    _check_unique(values, dimensions, problems)
    names = {name for rows in (*dimensions, include) for row in rows for name in row.values}
    for number, row in enumerate(exclude):
        for name in row.values.keys() - names:
            problems.add((*path, "exclude", number, name), "no row of the matrix sets this axis")
    axes = Axes(tuple(rows for rows in dimensions if rows), include, exclude, problems.line(path))
    if axes.count > MAX_COMBINATIONS:
        sizes = " x ".join(str(len(rows)) for rows in axes.dimensions if len(rows) > 1)
        arithmetic, hint = f"{sizes} = {axes.count:,}", "split the matrix over several files, or tie axes together"
        problems.add(
            path, "too many combinations", found=arithmetic, allowed=f"at most {MAX_COMBINATIONS:,}", hint=hint
        )
    return axes


def _check_unique(values: Mapping[str, Any], dimensions: list[tuple[Row, ...]], problems: Problems) -> None:
    """Add a problem for every axis that is in more than one dimension."""
    owner: dict[str, str] = {}
    for key, rows in zip(values, dimensions):
        for name in rows[0].values if rows else ():
            if name in owner:
                problems.add(("matrix", key), f"axis {name!r} is already set by 'matrix.{owner[name]}'")
            owner[name] = key


def _dimension(name: str, value: Any, path: KeyPath, problems: Problems) -> tuple[Row, ...]:
    items = value if isinstance(value, list) else [value]
    if not items:
        problems.add(path, "an empty list leaves nothing to run", hint="give at least one value")
        return ()
    if name in AXES or name in DOTTED or name.startswith(PREFIX):
        paths = [(*path, index) for index in range(len(items))] if isinstance(value, list) else [path]
        rows = [
            Row({name: _value(name, element, at, problems)}, problems.line(at)) for element, at in zip(items, paths)
        ]
        return tuple(row for row in rows if row.values[name] is not INVALID)
    if isinstance(value, list) and all(isinstance(element, Mapping) for element in value):
        tied = _rows(value, path, problems)
        every = dict.fromkeys(axis for row in tied for axis in row.values)
        for index, row in enumerate(tied):
            if missing := [axis for axis in every if axis not in row.values]:
                message = f"every item of a tied list must set the same axes; this one lacks {', '.join(missing)}"
                problems.add((*path, index), message, hint=f"add {missing[0]} to it")
        return tied
    hint = _TIED_HINT if isinstance(value, Mapping) or any(isinstance(element, Mapping) for element in items) else None
    for section, kind in SECTIONS.items():
        key = aliases_of(kind).get(name, name)
        if f"{section}.{key}" in DOTTED:
            hint = f"to use it as an axis, write '{section}.{key}'"
    problems.add_unknown(path, [*AXES, *_OPEN, "include", "exclude"], ALIASES, hint)
    return ()


def _rows(section: Any, path: KeyPath, problems: Problems) -> tuple[Row, ...]:
    if not isinstance(section, list):
        problems.add(path, "must be a list of mappings", found=shown(section))
        return ()
    rows = [parse_row(element, (*path, number), problems) for number, element in enumerate(section)]
    return tuple(row for row in rows if row)


def parse_row(element: Any, path: KeyPath, problems: Problems) -> Row | None:
    """Return a mapping of axes to values; None after adding its problems."""
    values = problems.canonical(element, ALIASES, path)
    if values == {}:
        problems.add(path, "sets no axis")
    if not values:
        return None
    checked = {name: _value(name, value, (*path, name), problems) for name, value in values.items()}
    return None if any(value is INVALID for value in checked.values()) else Row(checked, problems.line(path))


def _value(name: str, value: Any, path: KeyPath, problems: Problems) -> Any:
    """Return one value of one axis, checked; INVALID after adding its problem."""
    prefix, _, key = name.rpartition(".")
    if isinstance(value, str) and (instead := _REMOVED_VALUES.get((name, value))):
        problems.add(path, "was removed", found=shown(value), hint=instead)
        return INVALID
    if name.startswith(PREFIX):
        return parse_axis_value(name, value, path, problems)
    if name not in AXES and name not in DOTTED:
        problems.add_unknown(path, [*AXES, *_OPEN], [*ALIASES, *DOTTED])
        return INVALID
    if prefix == "model" and key in MODEL_PARTS:
        part = None if value is None else problems.validate(MODEL_PARTS[key], value, path)
        return INVALID if part is None and value is not None else part
    model = model_of(SECTIONS[prefix]) if prefix else AxisRow
    try:
        return getattr(model.model_validate({key: value}), key)
    except ValidationError as error:
        problems.add_validation(error, path, at_value=True)
        return INVALID


MAX_WEIGHTS = 2**40  # of a model: 4 TiB in fp32
MAX_DOCUMENTS = 2**16  # of all steps: planning generates each of them
MAX_ROWS = 20_000  # combinations that satisfy the constraints: each becomes a cell or a rejected cell
MAX_TESTS = 5_000_000  # of one combination against one row of include or exclude, one constraint or one entry


def size_problems(model: ModelConfig, train: TrainConfig) -> list[tuple[str, str]]:
    """Return the reasons why a cell is too large in every layout: (key, message with the arithmetic)."""
    reasons = []
    dense = replace(model, moe=replace(model.moe, topk=model.moe.experts)) if model.moe else model
    weights = weights_per_token(dense)
    if weights > MAX_WEIGHTS:
        reasons.append(("model", f"a model of {weights:,} weights is too large: at most {MAX_WEIGHTS:,}"))
    documents = train.steps * train.global_batch
    if documents > MAX_DOCUMENTS:
        sizes = f"steps {train.steps} x global_batch {train.global_batch} = {documents:,}"
        reasons.append(("train", f"too many documents: {sizes}, at most {MAX_DOCUMENTS:,}"))
    return reasons


def check_tests(axes: Axes, constraints: int, entries: int, problems: Problems) -> None:
    """Add a problem if testing every combination against every row, constraint and entry takes too many tests."""
    against = len(axes.include) + len(axes.exclude) + constraints + entries
    tests = axes.count * against
    if tests > MAX_TESTS:
        arithmetic = f"{axes.count:,} combinations x {against:,} = {tests:,}"
        allowed, hint = f"at most {MAX_TESTS:,}", "split the matrix over several files"
        message = "too many combinations for so many rows of include, exclude, constraints, xfail and may_reject"
        problems.add(("matrix",), message, found=arithmetic, allowed=allowed, hint=hint)


SELECT_KEY: KeyPath = ("select",)


@dataclass(frozen=True, kw_only=True)
class Covering:
    """A covering selection. `keep` holds patterns over cell names, and values by axis name."""

    strength: int = PAIRS
    keep: tuple[str | Mapping[str, Any], ...] = ()
    written: tuple[Any, ...] = ()  # `keep` as the file has it

    def section(self) -> dict[str, Any]:
        """Return the section as in a matrix file."""
        return {"covering": self.strength, "keep": list(self.written)}


def parse_select(section: Any, problems: Problems) -> Covering | None:
    """Return the covering selection, or None to run every cell; everything wrong with it is added to `problems`."""
    if section == "full":
        return None
    if section == "covering":
        return Covering()
    if not isinstance(section, Mapping):
        allowed = f"{', '.join(SELECT_NAMES)}, or a mapping like {{covering: 3}}"
        problems.add(SELECT_KEY, "unknown selection", found=shown(section), allowed=allowed)
        return None
    checked = problems.validate(CoveringSection, section, SELECT_KEY)
    if checked is None:
        return None
    keep: list[str | Mapping[str, Any]] = []
    for number, entry in enumerate(checked.keep):
        row = entry if isinstance(entry, str) else parse_row(entry, (*SELECT_KEY, "keep", number), problems)
        if row:
            keep.append(row if isinstance(row, str) else row.values)
    return Covering(strength=checked.covering, keep=tuple(keep), written=tuple(checked.keep))
