"""From a matrix to its cells: resolve every combination, apply constraints and rules, find the controls.

Timed cells of two stacks may be interleaved: each block of one runs next to a block of the other, on the same machine.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from harness.core.cell.arguments import PREFIX, Arguments
from harness.core.cell.axes import always
from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id, joined_id, own_identity, shape_identity
from harness.core.run.run_dir import MOST_CHARACTERS, has_safe_characters
from harness.core.run.run_plan import Expansion, MayReject, PlannedCell, RejectedCell, XFail
from harness.core.stack import DEFAULT
from harness.plan.expansion.resolve import NOT_IN_SHAPE, Combinations, Resolver, axes_of, control_of, with_noise_legs
from harness.plan.expansion.selection import Candidate, Forbidden, choose
from harness.plan.matrix.axes import SELECT_KEY
from harness.plan.matrix.load import Matrix
from harness.plan.matrix.problems import KeyPath, Problems
from harness.plan.rules.rule import Rule, Shape, own_of
from harness.plan.rules.table import (
    ADDED,
    CELL_RULES,
    SHAPE_RULES,
    concerning,
    concerning_shape,
    forbidden_by,
    world_size_rule,
)

Entry = TypeVar("Entry", XFail, MayReject)
_ALWAYS = always()  # axes that every table shows


def expand(matrix: Matrix, more_rules: tuple[Rule[CellConfig], ...] = ()) -> Expansion:
    """Cells, rejected cells and counts of excluded combinations; InputError when nothing is left to run.

    `more_rules`: those of the cluster that the cells run on.
    """
    problems = Problems(matrix.file, matrix.lines)
    combinations = Combinations(matrix, problems)
    problems.raise_any()
    resolver = Resolver(matrix, largest_cp=combinations.largest_cp)
    resolver.check_models(combinations.shapes, problems)
    problems.raise_any()
    rules = ((*SHAPE_RULES, world_size_rule(matrix.launch.max_ranks)), (*CELL_RULES, *ADDED, *more_rules))
    shown = list(dict.fromkeys([*_ALWAYS, *matrix.axes.names]))
    cells, rejected, forbidden = apply_rules(combinations, resolver, rules, shown, forbidden=bool(matrix.covering))
    if not cells:
        problems.add(*_nothing_left(rejected, combinations.excluded))
    known, lacking = _Entries("xfail", matrix.xfail), _Entries("may_reject", matrix.may_reject)
    allowed, selection = cells, None
    if matrix.covering and matrix.base:
        hint = "run every cell with select: full, or drop checks.throughput.slower_than"
        problems.add(SELECT_KEY, "a selection would leave out cells that others are interleaved with", hint=hint)
    elif matrix.covering and cells:
        cells, selection = choose(matrix.covering, matrix.axes, allowed, forbidden, problems)
    planned = _plan(cells, shown, known, lacking)
    planned = paired_cells(planned, matrix.base, problems) if matrix.base else planned
    known.check_used(allowed, rejected, problems)
    lacking.check_used(allowed, rejected, problems)
    _check_ids(planned, problems)
    problems.raise_any()
    excluded = dict(combinations.excluded)
    return Expansion(cells=tuple(planned), rejected=tuple(rejected), excluded=excluded, selection=selection)


def _check_ids(cells: Sequence[PlannedCell], problems: Problems) -> None:
    """Adds a problem for the first id that cannot name a folder, and for the longest if it is too long for one."""
    unsafe = next((cell for cell in cells if not has_safe_characters(cell.id)), None)
    if unsafe is not None:
        allowed = "letters, digits, '.', '_', '-', a letter or digit first"
        hint = "a value of an axis has other characters in its name: choose another value"
        message = "the id of a cell cannot name its folder"
        problems.add_at(unsafe.line, ("matrix",), message, found=unsafe.id, allowed=allowed, hint=hint)
    longest = max(cells, key=lambda cell: len(cell.id), default=None)
    if longest is None or len(longest.id) <= MOST_CHARACTERS:
        return
    config = longest.config
    chosen = {
        "the name in args": config.args.label,
        "the name of the stack": config.stack,
        "the name in upstream_tests": config.upstream_tests.name,
        "the axes of model, train and documents": config.variant,
    }
    part, name = max(chosen.items(), key=lambda item: len(item[1]))
    message = f"the id of a cell has {len(longest.id)} characters, too many for the name of its folder"
    hint = f"shorten {part}, {name!r}: a value that every cell has belongs in its section, not in an axis"
    problems.add_at(longest.line, ("matrix",), message, found=longest.id, allowed=f"{MOST_CHARACTERS}", hint=hint)


def _group(config: CellConfig) -> str:
    """Name of the cells that may share a control: same dtype, variant, arguments of the optimizer, device and stack.

    Within one matrix, the variant names all differences in model, train and documents. A stack is compared only with
    itself: releases may compute different numbers, and a broken release must not make another one fail.
    """
    return _group_name(config.dtype, config.variant, config.args, config.device, config.stack)


@lru_cache(maxsize=4096)  # of 100,000 cells, very few differ here
def _group_name(dtype: str, variant: str, args: Arguments, device: str, stack: str) -> str:
    own_device, own_stack = ("" if value == usual else value for value, usual in ((device, "auto"), (stack, DEFAULT)))
    parts = (dtype, variant, *args.of_optimizer().flags(), own_device, own_stack)
    return "-".join(part for part in parts if part)


def _plan(
    cells: list[Candidate],
    shown: list[str],
    known: _Entries[XFail] | None = None,
    lacking: _Entries[MayReject] | None = None,
) -> list[PlannedCell]:
    """The cells, each with its control; a control that the matrix lacks is added before its group."""
    groups: dict[str, list[Candidate]] = {}
    for cell in cells:
        groups.setdefault(_group(cell.config), []).append(cell)
    result: list[PlannedCell] = []
    for group, members in groups.items():
        known_ids = {cell.id for cell in members}
        controls: dict[str, Candidate] = {}
        control_ids = _control_ids(members, controls)
        added = [control for control in controls.values() if control.id not in known_ids]
        control_ids |= {control.id: control.id for control in added}
        used = set(control_ids.values())
        for cell in [*added, *members]:
            is_added, control = cell.id not in known_ids, control_ids[cell.id]
            allowed = lacking.of(cell.id) if lacking else None
            result.append(
                PlannedCell(
                    id=cell.id,
                    axes=axes_of(cell.config, shown) if cell.axes is None else cell.axes[0] | cell.axes[1],
                    config=with_noise_legs(cell.config) if cell.id in used else cell.config,
                    group=group,
                    control=None if control == cell.id else control,
                    role="control" if is_added else "cell",
                    xfail=known.of(cell.id) if known and not is_added else None,
                    may_reject=allowed.reason if allowed else "",
                    line=cell.line,
                )
            )
    return result


def with_controls(config: CellConfig) -> list[PlannedCell]:
    """Plan a cell that is in no matrix, preceded by its control."""
    return _plan([Candidate(cell_id(config), config, None)], list(_ALWAYS))


def _control_ids(cells: Iterable[Candidate], controls: dict[str, Candidate]) -> dict[str, str]:
    """Cell id -> id of its control, in one group; the controls are added to `controls`, by their ids.

    A variant does not name every size of a part of the model, and cells share the objects of their sections. So a
    control is looked up once for each of these objects, which is fast for many cells.
    """
    common: dict[tuple[str, bool, int, int, int], str] = {}
    found: dict[str, str] = {}
    for cell in cells:
        own = cell.config
        key = (own.attention, own.token_mean, id(own.model), id(own.train), id(own.documents))
        if key not in common:
            control = control_of(own)
            common[key] = cell_id(control)
            controls.setdefault(common[key], Candidate(common[key], control, None))
        found[cell.id] = common[key]
    return found


class _Entries(Generic[Entry]):
    """The entries of `key` in a matrix, and which of them matched a cell."""

    def __init__(self, key: str, entries: tuple[Entry, ...]) -> None:
        self._key = key
        self._entries: list[tuple[Entry, re.Pattern[str]]] = [
            (entry, re.compile(fnmatch.translate(entry.pattern))) for entry in entries
        ]
        self._used: set[int] = set()

    def of(self, cell: str) -> Entry | None:
        """The first entry whose pattern matches the cell's name."""
        if not self._entries:
            return None
        matching = [n for n, (_, pattern) in enumerate(self._entries) if pattern.match(name_of(cell))]
        self._used.update(matching)
        return self._entries[matching[0]][0] if matching else None

    def check_used(self, allowed: list[Candidate], rejected: list[RejectedCell], problems: Problems) -> None:
        """Adds a problem for an entry that matches no cell, whether selected or not: a typo, or the cell is gone."""
        for number, (entry, pattern) in enumerate(self._entries):
            if number not in self._used and not any(pattern.match(name_of(cell.id)) for cell in allowed):
                only_rejected = any(pattern.match(name_of(cell.id)) for cell in rejected)
                hint = "it matches rejected cells only" if only_rejected else "`harness plan` lists the cell names"
                problems.add((self._key, number, "pattern"), "matches no cell", found=repr(entry.pattern), hint=hint)


def name_of(cell: str) -> str:
    """A cell id without its hash."""
    return cell.rpartition("-")[0]


def _nothing_left(rejected: list[RejectedCell], excluded: Counter[str]) -> tuple[KeyPath, str]:
    """Where and why no cell is left."""
    if rejected:
        counts = Counter(rejection.rule for cell in rejected for rejection in cell.rejections)
        listed = ", ".join(f"{rule} ({count})" for rule, count in counts.most_common())
        first = f"{rejected[0].id}: {rejected[0].rejections[0].reason}"
        return ("matrix",), f"nothing left to run: rules reject every cell: {listed}; first {first}"
    if excluded:
        listed = ", ".join(f"{text!r} ({count})" for text, count in excluded.items())
        return ("constraints",), f"nothing left to run: constraints drop every combination: {listed}"
    return ("matrix",), "nothing left to run: the matrix has no combination"


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
) -> Applied:
    """Combinations that resolve to the same cell are merged.

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
                continue
            if forbidden:
                configs.append(Forbidden(config, reasons[0].rule))
        axes = shape.axes | own.axes
        rejected[name] = RejectedCell(id=name, axes=axes, rejections=reasons, line=origin.line)
    return Applied(list(cells.values()), list(rejected.values()), configs)


_PAIRS_KEY = ("checks", "throughput", "slower_than", "stack")


def paired_cells(cells: Sequence[PlannedCell], base: str, problems: Problems) -> list[PlannedCell]:
    """The cells; timed ones that differ only in the stack become pairs. `base` is the stack to compare with.

    A cell whose partner is rejected stays unpaired. Adds a problem unless there are two stacks, one of them the base.
    """
    stacks = list(dict.fromkeys(cell.config.stack for cell in cells))
    if base not in stacks:
        problems.add(_PAIRS_KEY, "no cell runs in this stack", found=repr(base), allowed=", ".join(stacks))
    elif len(stacks) != 2:
        hint = "run a matrix for each pair of stacks, or drop slower_than"
        problems.add(_PAIRS_KEY, f"interleaving needs two stacks, and the axis 'stack' has {len(stacks)}", hint=hint)
    groups: dict[str, list[PlannedCell]] = {}
    for cell in cells:
        if cell.config.timing.turns:
            groups.setdefault(_pair(cell.config), []).append(cell)
    partners = {cell.id: members for members in groups.values() if len(members) == 2 for cell in members}
    return [_paired(cell, partners[cell.id], base) if cell.id in partners else _unpaired(cell) for cell in cells]


def _pair(config: CellConfig) -> str:
    """The name of a cell's pair: a hash of the cell without its stack."""
    name = cell_id(replace(config, stack=""))
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _unpaired(cell: PlannedCell) -> PlannedCell:
    return replace(cell, config=replace(cell.config, timing=replace(cell.config.timing, turns="")))


def _paired(cell: PlannedCell, members: Sequence[PlannedCell], base: str) -> PlannedCell:
    is_base = cell.config.stack == base
    timing = replace(cell.config.timing, turns=_pair(cell.config), first=is_base)
    partner = next(member.id for member in members if member.id != cell.id)
    return replace(cell, config=replace(cell.config, timing=timing), base=None if is_base else partner)
