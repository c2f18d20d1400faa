"""Chooses rows of a table that cover every t-tuple of values that some row has; the only file that imports covertable.

A factor is a column; a row holds one code (the index of a value) per factor. covertable builds rows value by value and
asks whether a partial row can still become a row of the table, so all its rows are in the table and no tuple is missed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

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
        """Number of the first row that has these values; None if no row has them."""
        found = self._all
        for factor, code in part:
            found &= self._sets[factor][code]
        return (found & -found).bit_length() - 1 if found else None

    def parts(self, strength: int) -> Iterator[Part]:
        """Every t-tuple of values of different factors, possible or not."""
        for factors in combinations(range(len(self.sizes)), strength):
            for codes in product(*(range(self.sizes[factor]) for factor in factors)):
                yield tuple(zip(factors, codes))


def _set_of(rows: Sequence[Row], factor: int, code: int) -> int:
    """The rows that have a value, as the bits of an integer."""
    return int("".join(["1" if row[factor] == code else "0" for row in reversed(rows)]) or "0", 2)


def covered(rows: Iterable[Row], strength: int) -> set[Part]:
    """The t-tuples that the rows have."""
    return {part for row in rows for part in combinations(tuple(enumerate(row)), strength)}


def cover(space: Space, strength: int, kept: Sequence[int], texts: Sequence[Sequence[str]]) -> list[int]:
    """Sorted numbers of rows that together have every t-tuple of the table; the rows `kept` are among them.

    `texts` are the values as [factor][code]. Ties are broken by a hash of them, so that the choice depends neither on
    the order nor on the number of factors and values.
    """
    numbers: dict[Row, int] = {}
    for number, row in enumerate(space.rows):
        numbers.setdefault(row, number)
    if len(space.sizes) <= strength:
        return sorted({*numbers.values(), *kept})
    from covertable import make

    known: dict[Part, bool] = {}

    def can_be_row(part: Mapping[int, int]) -> bool | None:
        """Three-valued, as covertable expects: False is final, None means not yet decided."""
        key = tuple(sorted(part.items()))
        if key not in known:
            known[key] = space.first(key) is not None
        return None if known[key] and len(part) < len(space.sizes) else known[key]

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
        return sorted(parts, key=lambda part: self._hash([self._texts[indices[item]] for item in part]))

    @staticmethod
    def _hash(texts: Sequence[str]) -> bytes:
        return hashlib.sha256("\n".join(sorted(texts)).encode()).digest()
