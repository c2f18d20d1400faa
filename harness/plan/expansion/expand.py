"""From a matrix to its cells: resolve every combination, apply constraints and rules, find the controls."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from harness.core.cell.attention import KERNELS
from harness.core.cell.axes import always
from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id, own_identity, shape_identity
from harness.core.outcomes import Rejection
from harness.core.run.run_plan import Expansion, PlannedCell, RejectedCell, XFail
from harness.core.stack import DEFAULT
from harness.plan.expansion.interleaving import paired_cells
from harness.plan.expansion.resolve import Resolver, axes_of, control_of, default_values, of_section, with_noise_legs
from harness.plan.expansion.selection import Candidate, Forbidden, choose
from harness.plan.matrix.axes import Row
from harness.plan.matrix.constraints import ConstraintError
from harness.plan.matrix.load import Matrix
from harness.plan.matrix.problems import KeyPath, Problems
from harness.plan.matrix.select_parse import KEY
from harness.plan.matrix.sizes import MOST_ROWS
from harness.plan.rules.rule import Rule, Shape, own_of
from harness.plan.rules.table import CELL_RULES, RULES, SHAPE_RULES, concerning, forbidden_by, world_size_rule

_ALWAYS = always()  # axes that every table shows


def expand(matrix: Matrix, more_rules: tuple[Rule[CellConfig], ...] = ()) -> Expansion:
    """Cells, rejected cells and counts of excluded combinations; InputError when nothing is left to run.

    `more_rules`: those of the cluster that the cells run on.
    """
    problems = Problems(matrix.file, matrix.lines)
    excluded: Counter[str] = Counter()
    rows = list(itertools.islice(_allowed_rows(matrix, excluded, problems), MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        hint = "drop some by constraints or exclude, or split the matrix over several files"
        problems.add(("matrix",), "too many combinations are left", allowed=f"at most {MOST_ROWS:,}", hint=hint)
    _check_lifted(rows, problems)
    problems.raise_any()
    resolver = Resolver(matrix, largest_cp=max((row.values["cp"] for row in rows), default=1))
    resolver.check_models(rows, problems)
    problems.raise_any()
    shape_rules = (*SHAPE_RULES, world_size_rule(matrix.launch.max_ranks))
    shown = list(dict.fromkeys([*_ALWAYS, *matrix.axes.names]))
    cells, rejected, forbidden = _judge_rows(rows, resolver, shape_rules, (*CELL_RULES, *more_rules), shown)
    if not cells:
        problems.add(*_nothing_left(rejected, excluded))
    known = _KnownFailures(matrix.xfail)
    allowed, selection = cells, None
    if matrix.covering and matrix.base:
        hint = "run every cell with select: full, or drop checks.throughput.slower_than"
        problems.add(KEY, "a selection would leave out cells that others are interleaved with", hint=hint)
    elif matrix.covering and cells:
        cells, selection = choose(matrix.covering, matrix.axes, allowed, forbidden, problems)
    planned = _plan(cells, shown, known)
    planned = paired_cells(planned, matrix.base, problems) if matrix.base else planned
    known.check_used(allowed, rejected, problems)
    problems.raise_any()
    return Expansion(cells=tuple(planned), rejected=tuple(rejected), excluded=dict(excluded), selection=selection)


def _allowed_rows(matrix: Matrix, excluded: Counter[str], problems: Problems) -> Iterator[Row]:
    """Combinations with every axis filled in, less those that a constraint drops."""
    base = default_values(matrix)
    dotted = any("." in constraint.text for constraint in matrix.constraints)
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
            yield Row(values, combination.line, combination.included)
        else:
            excluded[broken.text] += 1


def _check_lifted(rows: Iterable[Row], problems: Problems) -> None:
    """Adds a problem for each value of the axis `lift` that is no rule's id."""
    known = [rule.id for rule in RULES]
    for lifted, line in {row.values["lift"]: row.line for row in rows if row.values["lift"]}.items():
        if lifted not in known:
            near = difflib.get_close_matches(lifted, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/rules.md lists the rules"
            problems.add_at(line, ("matrix", "lift"), "no such rule", found=repr(lifted), hint=hint)


def _sections(matrix: Matrix, values: dict[str, Any]) -> dict[str, Any]:
    """The sections as constraints see them: with the combination's values of axes like `model.layers`."""
    return {
        name: dataclasses.replace(section, **of_section(name, values))
        for name, section in (("model", matrix.model), ("train", matrix.train))
    }


class _SharedShape:
    """What all cells of one shape share, computed for the first of them."""

    def __init__(self, config: CellConfig, rules: tuple[Rule[Shape], ...]) -> None:
        self.identity = shape_identity(config)
        self._config = config
        self._rules = rules

    @cached_property
    def rejections(self) -> tuple[Rejection, ...]:
        return forbidden_by(self._config, self._rules)


class _SharedOwn:
    """What all cells share that differ only in their shape."""

    def __init__(self, config: CellConfig, rules: tuple[Rule[CellConfig], ...]) -> None:
        self.identity = own_identity(config)
        self.rules = concerning(own_of(config), rules)  # those that can forbid one of them


def _judge_rows(
    rows: list[Row],
    resolver: Resolver,
    shape_rules: tuple[Rule[Shape], ...],
    rules: tuple[Rule[CellConfig], ...],
    shown: list[str],
) -> tuple[list[Candidate], list[RejectedCell], list[Forbidden]]:
    """Cells and rejected cells, in matrix order; combinations that resolve to the same cell are merged."""
    cells: dict[str, Candidate] = {}
    rejected: dict[str, RejectedCell] = {}
    forbidden: list[Forbidden] = []
    shapes: dict[tuple[Any, ...], _SharedShape] = {}
    owns: dict[tuple[Any, ...], _SharedOwn] = {}
    for row in rows:
        key, own_key = resolver.shape_key(row.values), resolver.own_key(row.values)
        config = resolver.config(row.values, key, own_key)
        shape = shapes.get(key) or shapes.setdefault(key, _SharedShape(config, shape_rules))
        own = owns.get(own_key) or owns.setdefault(own_key, _SharedOwn(config, rules))
        name = cell_id(config, shape.identity, own.identity)
        if name in cells and row.included:
            cells[name] = cells[name]._replace(included=True)
        if name in cells or name in rejected:
            continue
        reasons = shape.rejections + forbidden_by(config, own.rules) if own.rules else shape.rejections
        if reasons:
            axes = axes_of(config, shown)
            rejected[name] = RejectedCell(id=name, axes=axes, rejections=reasons, line=row.line)
            forbidden.append(Forbidden(config, reasons[0].rule))
        else:
            cells[name] = Candidate(name, config, row.line, row.included)
    return list(cells.values()), list(rejected.values()), forbidden


def _group(config: CellConfig) -> str:
    """Name of the cells that may share a control: same dtype, variant, arguments of the optimizer, device and stack.

    Within one matrix, the variant names all differences in model, train and documents. A stack is compared only with
    itself: releases may compute different numbers, and a broken release must not make another one fail.
    """
    device = "" if config.device == "auto" else config.device
    stack = "" if config.stack == DEFAULT else config.stack
    variant = config.variant.removesuffix("gpt").rstrip("-") if config.model.as_gpt else config.variant
    parts = (config.dtype, variant, *config.args.of_optimizer().flags(), device, stack)
    return "-".join(part for part in parts if part)


def _plan(cells: list[Candidate], shown: list[str], known: _KnownFailures) -> list[PlannedCell]:
    """The cells, each with its control; a control that the matrix lacks is added before its group."""
    groups: dict[str, list[Candidate]] = {}
    for cell in cells:
        groups.setdefault(_group(cell.config), []).append(cell)
    result: list[PlannedCell] = []
    for group, members in groups.items():
        known_ids = {cell.id for cell in members}
        controls: dict[CellConfig, Candidate] = {}
        control_ids = _control_ids(members, controls)
        added = list({cell.id: cell for cell in reversed(controls.values()) if cell.id not in known_ids}.values())[::-1]
        control_ids |= _control_ids(added, controls)
        used = set(control_ids.values())
        for cell in [*added, *members]:
            is_added, control = cell.id not in known_ids, control_ids[cell.id]
            result.append(
                PlannedCell(
                    id=cell.id,
                    axes=axes_of(cell.config, shown),
                    config=with_noise_legs(cell.config) if cell.id in used else cell.config,
                    group=group,
                    control=None if control == cell.id else control,
                    role="control" if is_added else "cell",
                    xfail=None if is_added else known.of(cell.id),
                    line=cell.line,
                )
            )
    return result


def with_controls(config: CellConfig) -> list[PlannedCell]:
    """Plans a cell that is in no matrix, preceded by its control, that control's control and so on."""
    return _plan([Candidate(cell_id(config), config, None)], list(_ALWAYS), _KnownFailures(()))


def _control_ids(cells: Iterable[Candidate], controls: dict[CellConfig, Candidate]) -> dict[str, str]:
    """Cell id -> id of its control, in one group. Cells whose rows do not matter share one per attention and model."""
    common: dict[tuple[str, bool], str] = {}
    found: dict[str, str] = {}
    for cell in cells:
        attention = cell.config.attention
        if cell.config.by_rows or attention in KERNELS:
            found[cell.id] = _control_id(cell.config, controls)
        else:
            key = (attention, cell.config.model.as_gpt)
            common[key] = common.get(key) or _control_id(cell.config, controls)
            found[cell.id] = common[key]
    return found


def _control_id(config: CellConfig, controls: dict[CellConfig, Candidate]) -> str:
    """The id of a cell's control; the control is added to `controls`, after its own control."""
    control = control_of(config)
    if control not in controls:
        if control != config:
            _control_id(control, controls)
        controls.setdefault(control, Candidate(cell_id(control), control, None))
    return controls[control].id


class _KnownFailures:
    """The xfail entries of a matrix, and which of them matched a cell."""

    def __init__(self, entries: tuple[XFail, ...]) -> None:
        self._entries = [(entry, re.compile(fnmatch.translate(entry.pattern))) for entry in entries]
        self._used: set[int] = set()

    def of(self, cell: str) -> XFail | None:
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
                problems.add(("xfail", number, "pattern"), "matches no cell", found=repr(entry.pattern), hint=hint)


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
