from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.matrix.expansion.selection import Row, Space, cover, covered


def texts(sizes: list[int]) -> list[list[str]]:
    return [[f"{factor}={code}" for code in range(size)] for factor, size in enumerate(sizes)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[Row]]:
    """Tables of up to 5 factors with up to 4 values each, holding some of their combinations."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    row = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    return sizes, draw(st.lists(row, min_size=1, max_size=60))


@settings(deadline=None)
@given(tables(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_tuple_that_a_row_has_is_in_a_chosen_row_and_kept_rows_are_chosen(
    table: tuple[list[int], list[Row]], strength: int, rng: random.Random
) -> None:
    sizes, rows = table
    kept = rng.sample(range(len(rows)), k=rng.randint(0, min(3, len(rows))))
    chosen = cover(Space(rows, sizes), strength, kept, texts(sizes))
    assert set(kept) <= set(chosen)
    assert chosen == sorted(set(chosen))
    for factors in combinations(range(len(sizes)), strength):  # counted by hand, not by `covered`
        there = {tuple(row[factor] for factor in factors) for row in rows}
        run = {tuple(rows[number][factor] for factor in factors) for number in chosen}
        assert there == run


@settings(deadline=None)
@given(tables())
def test_a_space_finds_the_first_row_with_given_values(table: tuple[list[int], list[Row]]) -> None:
    sizes, rows = table
    space = Space(rows, sizes)
    for part in space.parts(min(2, len(sizes))):
        by_hand = [number for number, row in enumerate(rows) if all(row[factor] == code for factor, code in part)]
        assert space.first(part) == (by_hand[0] if by_hand else None)


def test_pairs_of_four_factors_with_three_values_need_few_of_their_81_rows() -> None:
    """The minimum is 9."""
    sizes = [3] * 4
    rows = [(a, b, c, d) for a in range(3) for b in range(3) for c in range(3) for d in range(3)]
    chosen = cover(Space(rows, sizes), 2, [], texts(sizes))
    assert 9 <= len(chosen) <= 14
    assert len(covered((rows[number] for number in chosen), 2)) == 6 * 9


def test_the_choice_does_not_depend_on_the_order_of_factors_and_values() -> None:
    sizes = [2, 3, 4, 2]
    rows = [(a, b, c, d) for a in range(2) for b in range(3) for c in range(4) for d in range(2) if a or b != c]
    names = texts(sizes)
    chosen = {
        frozenset(names[f][code] for f, code in enumerate(rows[n])) for n in cover(Space(rows, sizes), 2, [], names)
    }
    turned = [row[::-1] for row in reversed(rows)]
    back = names[::-1]
    again = cover(Space(turned, sizes[::-1]), 2, [], back)
    assert {frozenset(back[f][code] for f, code in enumerate(turned[n])) for n in again} == chosen


CHOICE = """
import itertools
from harness.matrix.expansion.selection import Space, cover
sizes = [2, 3, 4, 2]
rows = list(itertools.product(*map(range, sizes)))
print(cover(Space(rows, sizes), 2, [5], [[f"{f}={c}" for c in range(size)] for f, size in enumerate(sizes)]))
"""


def test_the_choice_is_the_same_in_every_process(root: Path) -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", CHOICE],
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1
    assert printed.pop().startswith("[5, ")
