"""A covering selection of the cells that constraints and rules allow, including the cells that are always kept.

It has every t-tuple of values that some allowed cell has. In a table of cells a factor is a column; a row holds one
code (the index of a value) per factor. covertable builds rows value by value and asks whether a partial row can still
become a row of the table, so all its rows are in the table and no tuple is missed. No other file imports covertable.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from itertools import combinations, product
from typing import Any, NamedTuple

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.identity import cell_name
from harness.core.outcomes import Rejection
from harness.core.packing.documents import DocumentsConfig, documents_of_step
from harness.core.run.run_plan import Selection
from harness.matrix.axes import SELECT_KEY, Axes, Covering
from harness.matrix.expansion.resolve import value_of
from harness.matrix.problems import Problems, shown

MAX_PARTS = 20_000  # t-tuples of values to cover
NOT_THERE = "no combination of the matrix has it, or a constraint drops all that do"


class Candidate(NamedTuple):
    """A cell that no rule forbids, not yet planned."""

    id: str
    config: CellConfig
    line: int | None
    included: bool = False  # made by an include row


class Forbidden(NamedTuple):
    """A cell that rules forbid."""

    id: str
    config: CellConfig
    line: int | None
    rejections: tuple[Rejection, ...]


def choose(
    covering: Covering,
    axes: Axes,
    cells: Sequence[Candidate],
    forbidden: Sequence[Forbidden],
    problems: Problems,
) -> tuple[list[Candidate], Selection]:
    """Return the cells that run, in matrix order, and what they cover.

    Adds a problem for entries of `keep` without a cell.
    """
    kept_cells = _kept(covering, cells, forbidden, problems)
    factors = _factors(axes)
    table = _Table(factors, [cell.config for cell in cells], [rejected_cell.config for rejected_cell in forbidden])
    space = Space(table.rows, table.sizes)
    strength = min(covering.strength, len(table.sizes))
    _check_parts(space, strength, problems)
    kept_numbers = sorted({number for numbers in kept_cells.values() for number in numbers})
    numbers = cover(space, strength, kept_numbers, table.texts)
    covered_parts = covered((table.rows[number] for number in numbers), strength)
    possible, impossible = 0, Counter[str]()
    rejected = Space(table.others, table.sizes)
    for part in space.parts(strength):
        if space.first(part) is not None:
            possible += 1
        else:
            first_rejected = rejected.first(part)
            impossible[
                NOT_THERE if first_rejected is None else f"rule {forbidden[first_rejected].rejections[0].rule}"
            ] += 1
    selection = Selection(
        strength=covering.strength,
        cells=len(numbers),
        allowed=len(cells),
        covered=len(covered_parts),
        possible=possible,
        impossible=dict(impossible.most_common()),
        kept={
            why: len(set(of_reason)) for why, of_reason in kept_cells.items() if of_reason or why in dict(_MUST_COVER)
        },
    )
    return [cells[number] for number in numbers], selection


def _check_parts(space: Space, strength: int, problems: Problems) -> None:
    """Raise InputError where finding the cells would take minutes."""
    parts = sum(math.prod(sizes) for sizes in combinations(space.sizes, strength))
    if parts > MAX_PARTS:
        arithmetic, hint = f"{parts:,} sets of {strength} values", "lower select.covering, or give axes fewer values"
        problems.add(SELECT_KEY, "too much to cover", found=arithmetic, allowed=f"at most {MAX_PARTS:,}", hint=hint)
        problems.raise_any()


def _factors(axes: Axes) -> list[tuple[str, ...]]:
    """Return the axes of each factor: tied axes form one factor.

    An axis set only by include rows is a factor by itself.
    """
    tied = [tuple(rows[0].values) for rows in axes.dimensions]
    single = dict.fromkeys(name for row in axes.include for name in row.values)
    return tied + [(name,) for name in single if not any(name in names for names in tied)]


class _Table:
    """Cells as rows of codes, one code per factor with more than one value. `others` holds the forbidden cells."""

    def __init__(
        self, factors: Sequence[tuple[str, ...]], allowed: Sequence[CellConfig], forbidden: Sequence[CellConfig]
    ) -> None:
        columns: list[list[int]] = []
        self.texts: list[list[str]] = []
        for names in factors:
            values = [tuple([value_of(config, name) for name in names]) for config in (*allowed, *forbidden)]
            distinct = sorted(set(values), key=_order)
            if len(distinct) > 1:
                codes = {value: code for code, value in enumerate(distinct)}
                columns.append([codes[value] for value in values])
                self.texts.append([f"{names}={value}" for value in distinct])
        rows: list[Row] = list(zip(*columns)) if columns else [()] * (len(allowed) + len(forbidden))
        self.sizes = [len(texts) for texts in self.texts]
        self.rows, self.others = rows[: len(allowed)], rows[len(allowed) :]


def _order(values: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Return the sort key of values, small numbers first: free positions of a row get the first value, which keeps
    cells small.
    """
    return [(type(value).__name__, value if isinstance(value, (int, str)) else repr(value)) for value in values]


def _kept(
    covering: Covering, cells: Sequence[Candidate], forbidden: Sequence[Forbidden], problems: Problems
) -> dict[str, list[int]]:
    """Return the numbers of the cells that are always kept, by reason."""
    kept = {"include rows": [number for number, cell in enumerate(cells) if cell.included], "keep": []}
    for index, entry in enumerate(covering.keep):
        matches = _matcher(entry)
        matching = [number for number, cell in enumerate(cells) if matches(cell.config)]
        kept["keep"] += matching
        if not matching:
            only_rejected = any(matches(rejected_cell.config) for rejected_cell in forbidden)
            hint = (
                "it matches rejected cells only"
                if only_rejected
                else "`harness plan` lists the names with select: full"
            )
            problems.add(
                (*SELECT_KEY, "keep", index), "matches no cell", found=shown(covering.written[index]), hint=hint
            )
    return kept | _must_cover(cells, {number for numbers in kept.values() for number in numbers})


def _matcher(entry: str | Mapping[str, Any]) -> Callable[[CellConfig], bool]:
    if isinstance(entry, str):
        pattern = re.compile(translate(entry))
        return lambda config: pattern.match(cell_name(config)) is not None
    return lambda config: all(value_of(config, name) == _requested(config, name, entry[name]) for name in entry)


def _requested(config: CellConfig, name: str, value: Any) -> Any:
    """Return the value of an axis that `keep` asks for; `auto` resolved for this cell."""
    if value is None and name == "sp":
        return config.layout.tp > 1
    return "auto" if value is None and name == "pad_seq_to_mult" else value


def _stages(config: CellConfig) -> bool:
    return config.layout.tp >= 2 and config.layout.pp >= 4


def _odd(config: CellConfig) -> bool:
    return config.layout.cp >= 2 and _has_odd(config.documents, config.train)


def _both(config: CellConfig) -> bool:
    return config.layout.world_size >= 16 and _stages(config) and _odd(config)


# The strongest first: its cells satisfy the others too.
_MUST_COVER: tuple[tuple[str, Callable[[CellConfig], bool]], ...] = (
    ("tp >= 2, pp >= 4, cp >= 2 with odd lengths, on 16 ranks", _both),
    ("tp >= 2 with pp >= 4", _stages),
    ("cp >= 2 with odd lengths", _odd),
)


def _must_cover(cells: Sequence[Candidate], kept: Iterable[int]) -> dict[str, list[int]]:
    """Return, for every data path in every stack, the cell with the fewest ranks that exposes most known
    packing bugs.
    """
    chosen = set(kept)
    by_reason: dict[str, list[int]] = {}
    for reason, holds in _MUST_COVER:
        groups: dict[tuple[str, str], list[int]] = {}
        for number, cell in enumerate(cells):
            if cell.config.path.packs and holds(cell.config):
                groups.setdefault((cell.config.stack, cell.config.data_path), []).append(number)
        by_reason[reason] = []
        for members in groups.values():
            already = [number for number in members if number in chosen]
            by_reason[reason] += already or [min(members, key=lambda number: _size(cells[number]))]
        chosen.update(by_reason[reason])
    return by_reason


def _size(cell: Candidate) -> tuple[int, int, str]:
    """Return the sort key of a cell: ranks, then length of the id, which grows with the axes that are not at their
    defaults.
    """
    return cell.config.layout.world_size, len(cell.id), cell.id


@lru_cache(maxsize=256)
def _has_odd(documents: DocumentsConfig, train: TrainConfig) -> bool:
    """Return whether a document of the first step has an odd length, which any even alignment pads."""
    step = documents_of_step(documents, seed=train.seed, step=0, count=train.global_batch, seq_length=train.seq_length)
    return any(document.length % 2 for document in step)


Row = tuple[int, ...]
Part = tuple[tuple[int, int], ...]  # (factor, code) of some factors, by factor


class Space:
    """The possible combinations of values: those that occur together in a row of a table."""

    def __init__(self, rows: Sequence[Row], sizes: Sequence[int]) -> None:
        """`sizes`: number of values of each factor, whether or not a row has them."""
        self.rows, self.sizes = rows, tuple(sizes)
        self._sets = [[_set_of(rows, factor, code) for code in range(size)] for factor, size in enumerate(sizes)]
        self._all = (1 << len(rows)) - 1

    def first(self, part: Iterable[tuple[int, int]]) -> int | None:
        """Return the number of the first row that has these values; None if no row has them."""
        rows = self._all
        for factor, code in part:
            rows &= self._sets[factor][code]
        return (rows & -rows).bit_length() - 1 if rows else None  # the lowest bit

    def parts(self, strength: int) -> Iterator[Part]:
        """Yield every t-tuple of values of different factors, possible or not."""
        for factors in combinations(range(len(self.sizes)), strength):
            for codes in product(*(range(self.sizes[factor]) for factor in factors)):
                yield tuple(zip(factors, codes))


def _set_of(rows: Sequence[Row], factor: int, code: int) -> int:
    """Return the rows that have a value, as the bits of an integer."""
    return int("".join(["1" if row[factor] == code else "0" for row in reversed(rows)]) or "0", 2)


def covered(rows: Iterable[Row], strength: int) -> set[Part]:
    """Return the t-tuples that the rows have."""
    return {part for row in rows for part in combinations(tuple(enumerate(row)), strength)}


def cover(space: Space, strength: int, kept: Sequence[int], texts: Sequence[Sequence[str]]) -> list[int]:
    """Return the sorted numbers of rows that together have every t-tuple of the table; the rows `kept` are among them.

    `texts` are the values as [factor][code]. Ties are broken by a hash of them, so that the choice depends neither on
    the order nor on the number of factors and values.
    """
    numbers: dict[Row, int] = {}
    for number, row in enumerate(space.rows):
        numbers.setdefault(row, number)
    if len(space.sizes) <= strength:
        return sorted({*numbers.values(), *kept})
    from covertable import make

    is_possible: dict[Part, bool] = {}

    def can_be_row(part: Mapping[int, int]) -> bool | None:
        """Answer in three values, as covertable expects: False is final, None means not yet decided."""
        key = tuple(sorted(part.items()))
        if key not in is_possible:
            is_possible[key] = space.first(key) is not None
        return None if is_possible[key] and len(part) < len(space.sizes) else is_possible[key]

    chosen = make(
        [list(range(size)) for size in space.sizes],
        strength=strength,
        sorter=_ByText([text for values in texts for text in values]),
        presets=[list(space.rows[number]) for number in kept],
        constraints=[{"operator": "fn", "requires": [], "evaluate": can_be_row}],
    )
    return sorted({*(numbers[tuple(row)] for row in chosen), *kept})


class _ByText:
    """A sorter for covertable: tuples are covered in the order of a hash of their texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts  # of all values of all factors, one factor after the other

    def sort(self, parts: Iterable[tuple[int, ...]], *, indices: Mapping[int, int], **_: Any) -> list[tuple[int, ...]]:
        return sorted(parts, key=lambda part: self._hash([self._texts[indices[value]] for value in part]))

    @staticmethod
    def _hash(texts: Sequence[str]) -> bytes:
        return hashlib.sha256("\n".join(sorted(texts)).encode()).digest()
