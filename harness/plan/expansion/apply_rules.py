"""Which combinations become cells, and which a rule rejects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from harness.core.cell.arguments import PREFIX
from harness.core.cell.config import CellConfig
from harness.core.cell.identity import joined_id, own_identity, shape_identity
from harness.core.run.run_plan import RejectedCell
from harness.plan.expansion.combinations import NOT_IN_SHAPE, Combinations
from harness.plan.expansion.resolve import Resolver, axes_of
from harness.plan.expansion.selection import Candidate, Forbidden
from harness.plan.rules.rule import Rule, Shape, own_of
from harness.plan.rules.table import concerning, concerning_shape, forbidden_by


class Applied(NamedTuple):
    """Cells and rejected cells, in matrix order."""

    cells: list[Candidate]
    rejected: list[RejectedCell]
    forbidden: list[Forbidden]  # of `rejected`, if they were asked for


class _SharedShape:
    """What all cells of one shape share, computed with the first of them."""

    __slots__ = ("axes", "fields", "identity", "rejections")

    def __init__(self, fields: dict[str, Any], first: CellConfig, shown: list[str], rules: Iterable[Rule[Shape]]):
        self.fields = fields
        self.axes = axes_of(first, shown)
        self.identity = shape_identity(first)
        self.rejections = forbidden_by(first, rules)


class _SharedOwn:
    """What all cells share that differ only in their shape."""

    def __init__(self, fields: dict[str, Any], first: CellConfig, shown: list[str], rules: Iterable[Rule[CellConfig]]):
        self.fields = fields
        self.axes = axes_of(first, [name for name in shown if name in NOT_IN_SHAPE or name.startswith(PREFIX)])
        self.identity = own_identity(first)
        self.rules = concerning(own_of(first), rules)  # those that can forbid one of them


class _Shared:
    """The parts of combinations met so far."""

    def __init__(
        self,
        combinations: Combinations,
        resolver: Resolver,
        rules: tuple[tuple[Rule[Shape], ...], tuple[Rule[CellConfig], ...]],
        shown: list[str],
    ) -> None:
        self._combinations = combinations
        self._resolver = resolver
        self._shape_rules, self._rules = rules
        self._shown = shown
        self._shapes: dict[int, _SharedShape] = {}
        self._owns: dict[int, _SharedOwn] = {}
        self._kinds: dict[tuple[str, int], tuple[Rule[Shape], ...]] = {}  # data path, id of the model -> rules

    def _rules_of(self, config: CellConfig) -> tuple[Rule[Shape], ...]:
        """The rules that can forbid a cell with this data path and model; the resolver has one object per model."""
        key = (config.data_path, id(config.model))
        if key not in self._kinds:
            self._kinds[key] = concerning_shape(config, self._shape_rules)
        return self._kinds[key]

    def of(self, shape_index: int, own_index: int) -> tuple[_SharedShape, _SharedOwn]:
        shape, own = self._shapes.get(shape_index), self._owns.get(own_index)
        if shape and own:
            return shape, own
        of_shape = shape.fields if shape else self._resolver.shape(self._combinations.shape(shape_index))
        of_own = own.fields if own else self._resolver.own(self._combinations.own(own_index))
        first = CellConfig(**of_shape, **of_own)  # not kept, since it caches what the rules read
        shape = shape or _SharedShape(of_shape, first, self._shown, self._rules_of(first))
        own = own or _SharedOwn(of_own, first, self._shown, self._rules)
        self._shapes[shape_index], self._owns[own_index] = shape, own
        return shape, own


def apply_rules(
    combinations: Combinations,
    resolver: Resolver,
    rules: tuple[tuple[Rule[Shape], ...], tuple[Rule[CellConfig], ...]],
    shown: list[str],
    *,
    forbidden: bool,
    first: bool = False,
) -> Applied:
    """Combinations that resolve to the same cell are merged. `first`: no further than the first cell.

    `rules`: of shapes, and of cells. `shown`: axes of tables. `forbidden`: see Applied.
    """
    shared = _Shared(combinations, resolver, rules, shown)
    cells: dict[str, Candidate] = {}
    rejected: dict[str, RejectedCell] = {}
    configs: list[Forbidden] = []
    for indices, origin in combinations.found.items():
        shape, own = shared.of(*indices)
        name = joined_id(shape.identity, own.identity)
        if name in cells and origin.included:
            cells[name] = cells[name]._replace(included=True)
        if name in cells or name in rejected:
            continue
        reasons = shape.rejections
        if not reasons or own.rules or forbidden:
            config = CellConfig(**shape.fields, **own.fields)
            reasons += forbidden_by(config, own.rules)
            if not reasons:
                cells[name] = Candidate(name, config, *origin, (shape.axes, own.axes))
                if first:
                    break
                continue
            if forbidden:
                configs.append(Forbidden(config, reasons[0].rule))
        axes = shape.axes | own.axes
        rejected[name] = RejectedCell(id=name, axes=axes, rejections=reasons, line=origin.line)
    return Applied(list(cells.values()), list(rejected.values()), configs)
