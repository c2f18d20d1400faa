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
from typing import Generic, TypeVar

from harness.core.cell.axes import always
from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.run.run_dir import MAX_CHARACTERS, has_safe_characters
from harness.core.run.run_plan import Expansion, MayReject, PlannedCell, RejectedCell, XFail
from harness.core.setting import keys_of, label_of
from harness.matrix.axes import SELECT_KEY, Row
from harness.matrix.expansion.resolve import Resolver, axes_of, combinations_of, control_of, with_noise_legs
from harness.matrix.expansion.selection import Candidate, Forbidden, choose
from harness.matrix.load import Matrix
from harness.matrix.problems import KeyPath, Problems
from harness.matrix.rules.rule import Rule
from harness.matrix.rules.table import rejections, rules_of

Entry = TypeVar("Entry", XFail, MayReject)


def expand(matrix: Matrix, more_rules: tuple[Rule, ...] = ()) -> Expansion:
    """Return the cells, rejected cells and counts of excluded combinations; InputError when nothing is left to run.

    `more_rules`: those of the cluster that the cells run on.
    """
    problems = Problems(matrix.file, matrix.lines)
    combinations, excluded = combinations_of(matrix, problems)
    problems.raise_any()
    resolver = Resolver(matrix, largest_cp=max((row.values["cp"] for row in combinations), default=1))
    resolver.check_models(combinations, problems)
    problems.raise_any()
    allowed, forbidden = apply_rules(combinations, resolver, rules_of(matrix.launch.max_ranks, more_rules))
    shown = list(dict.fromkeys([*always(), *matrix.axes.names]))
    rejected = [
        RejectedCell(id=cell.id, axes=axes_of(cell.config, shown), rejections=cell.rejections, line=cell.line)
        for cell in forbidden
    ]
    if not allowed:
        problems.add(*_nothing_left(rejected, excluded))
    xfail, lacking = _Entries("xfail", matrix.xfail), _Entries("may_reject", matrix.may_reject)
    cells, selection = allowed, None
    if matrix.covering and matrix.base:
        hint = "run every cell with select: full, or drop checks.throughput.slower_than"
        problems.add(SELECT_KEY, "a selection would leave out cells that others are interleaved with", hint=hint)
    elif matrix.covering and cells:
        cells, selection = choose(matrix.covering, matrix.axes, allowed, forbidden, problems)
    planned = _plan(cells, shown, xfail, lacking)
    planned = paired_cells(planned, matrix.base, problems) if matrix.base else planned
    xfail.check_used(allowed, rejected, problems)
    lacking.check_used(allowed, rejected, problems)
    _check_ids(planned, problems)
    problems.raise_any()
    return Expansion(cells=tuple(planned), rejected=tuple(rejected), excluded=dict(excluded), selection=selection)


def _check_ids(cells: Sequence[PlannedCell], problems: Problems) -> None:
    """Add a problem for the first id that cannot name a folder, and for the longest if it is too long for one."""
    unsafe = next((cell for cell in cells if not has_safe_characters(cell.id)), None)
    if unsafe is not None:
        allowed = "letters, digits, '.', '_', '-', a letter or digit first"
        hint = "a value of an axis has other characters in its name: choose another value"
        message = "the id of a cell cannot name its folder"
        problems.add_at(unsafe.line, ("matrix",), message, found=unsafe.id, allowed=allowed, hint=hint)
    longest = max(cells, key=lambda cell: len(cell.id), default=None)
    if longest is None or len(longest.id) <= MAX_CHARACTERS:
        return
    config = longest.config
    chosen = {
        "the name in args": config.args.label,
        "the name of the stack": config.stack,
        "the axes of model, train and documents": config.variant,
    }
    part, name = max(chosen.items(), key=lambda part_and_name: len(part_and_name[1]))
    message = f"the id of a cell has {len(longest.id)} characters, too many for the name of its folder"
    hint = f"shorten {part}, {name!r}: a value that every cell has belongs in its section, not in an axis"
    problems.add_at(longest.line, ("matrix",), message, found=longest.id, allowed=f"{MAX_CHARACTERS}", hint=hint)


_OTHERWISE_NAMED = ("dtype", "attention")  # the first leads; attention kernels must agree, so one chart shows them


def _group(control: CellConfig) -> str:
    """Return the name of the cells that the report draws together: dtype, variant, arguments of the optimizer and the
    settings that their control keeps. All have the same ones, and so has their control.

    Within one matrix, the variant names all differences in model, train and documents. A stack is compared only with
    itself: releases may compute different numbers, and a broken release must not make another one fail.
    """
    kept = (key for key in keys_of(CellConfig).values() if key.setting.in_control and key.name not in _OTHERWISE_NAMED)
    others = [label_of(key, getattr(control, key.name)) for key in kept]
    return "-".join(filter(None, [control.dtype, control.variant, *control.args.of_optimizer().flags(), *others]))


def _plan(
    cells: list[Candidate],
    shown: list[str],
    xfail: _Entries[XFail] | None = None,
    lacking: _Entries[MayReject] | None = None,
) -> list[PlannedCell]:
    """Return the cells, each with its control; a control that the matrix lacks is added before its group."""
    groups: dict[str, list[tuple[Candidate, Candidate]]] = {}
    controls: dict[CellConfig, Candidate] = {}
    for cell in cells:
        config = control_of(cell.config)
        control = controls.get(config) or controls.setdefault(config, Candidate(cell_id(config), config, None))
        groups.setdefault(_group(control.config), []).append((cell, control))
    result: list[PlannedCell] = []
    for group, members in groups.items():
        known_ids = {cell.id for cell, _ in members}
        used = {control.id: control for _, control in members}
        added = [(control, control) for control in used.values() if control.id not in known_ids]
        for cell, control in [*added, *members]:
            is_added = cell.id not in known_ids
            allowed = lacking.of(cell.id) if lacking else None
            result.append(
                PlannedCell(
                    id=cell.id,
                    axes=axes_of(cell.config, shown),
                    config=with_noise_legs(cell.config) if cell.id in used else cell.config,
                    group=group,
                    control=None if control.id == cell.id else control.id,
                    role="control" if is_added else "cell",
                    xfail=xfail.of(cell.id) if xfail and not is_added else None,
                    may_reject=allowed.reason if allowed else "",
                    line=cell.line,
                )
            )
    return result


def with_controls(config: CellConfig) -> list[PlannedCell]:
    """Plan a cell that is in no matrix, preceded by its control."""
    return _plan([Candidate(cell_id(config), config, None)], list(always()))


class _Entries(Generic[Entry]):
    """The entries of `key` in a matrix, and which of them matched a cell."""

    def __init__(self, key: str, entries: tuple[Entry, ...]) -> None:
        self._key = key
        self._entries: list[tuple[Entry, re.Pattern[str]]] = [
            (entry, re.compile(fnmatch.translate(entry.pattern))) for entry in entries
        ]
        self._used: set[int] = set()

    def of(self, cell: str) -> Entry | None:
        """Return the first entry whose pattern matches the cell's name."""
        if not self._entries:
            return None
        matching = [n for n, (_, pattern) in enumerate(self._entries) if pattern.match(name_of(cell))]
        self._used.update(matching)
        return self._entries[matching[0]][0] if matching else None

    def check_used(self, allowed: list[Candidate], rejected: list[RejectedCell], problems: Problems) -> None:
        """Add a problem for an entry that matches no cell, whether selected or not: a typo, or the cell is gone."""
        for number, (entry, pattern) in enumerate(self._entries):
            if number not in self._used and not any(pattern.match(name_of(cell.id)) for cell in allowed):
                only_rejected = any(pattern.match(name_of(cell.id)) for cell in rejected)
                hint = "it matches rejected cells only" if only_rejected else "`harness plan` lists the cell names"
                problems.add((self._key, number, "pattern"), "matches no cell", found=repr(entry.pattern), hint=hint)


def name_of(cell: str) -> str:
    """Return a cell id without its hash."""
    return cell.rpartition("-")[0]


def _nothing_left(rejected: list[RejectedCell], excluded: Counter[str]) -> tuple[KeyPath, str]:
    """Return where and why no cell is left."""
    if rejected:
        counts = Counter(rejection.rule for cell in rejected for rejection in cell.rejections)
        listed = ", ".join(f"{rule} ({count})" for rule, count in counts.most_common())
        first = f"{rejected[0].id}: {rejected[0].rejections[0].reason}"
        return ("matrix",), f"nothing left to run: rules reject every cell: {listed}; first {first}"
    if excluded:
        listed = ", ".join(f"{text!r} ({count})" for text, count in excluded.items())
        return ("constraints",), f"nothing left to run: constraints drop every combination: {listed}"
    return ("matrix",), "nothing left to run: the matrix has no combination"


def apply_rules(
    combinations: Iterable[Row], resolver: Resolver, rules: Sequence[Rule]
) -> tuple[list[Candidate], list[Forbidden]]:
    """Return the cells that no rule forbids and cells that one does, in matrix order.

    Combinations that resolve to the same cell are merged.
    """
    allowed: dict[str, Candidate] = {}
    forbidden: dict[str, Forbidden] = {}
    for row in combinations:
        config = resolver.config(row.values)
        name = cell_id(config)
        if name in allowed:
            allowed[name] = allowed[name]._replace(included=allowed[name].included or row.included)
        elif name not in forbidden:
            if reasons := rejections(config, rules):
                forbidden[name] = Forbidden(name, config, row.line, reasons)
            else:
                allowed[name] = Candidate(name, config, row.line, row.included)
    return list(allowed.values()), list(forbidden.values())


_PAIRS_KEY = ("checks", "throughput", "slower_than", "stack")


def paired_cells(cells: Sequence[PlannedCell], base: str, problems: Problems) -> list[PlannedCell]:
    """Return the cells; timed ones that differ only in the stack become pairs. `base` is the stack to compare with.

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
    """Return the name of a cell's pair: a hash of the cell without its stack."""
    name = cell_id(replace(config, stack=""))
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _unpaired(cell: PlannedCell) -> PlannedCell:
    return replace(cell, config=replace(cell.config, timing=replace(cell.config.timing, turns="")))


def _paired(cell: PlannedCell, members: Sequence[PlannedCell], base: str) -> PlannedCell:
    is_base = cell.config.stack == base
    timing = replace(cell.config.timing, turns=_pair(cell.config), first=is_base)
    partner = next(member.id for member in members if member.id != cell.id)
    return replace(cell, config=replace(cell.config, timing=timing), base=None if is_base else partner)
