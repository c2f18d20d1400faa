"""Chooses which points of a history to judge next, and interprets their verdicts. Pure: names in, names out.

A history is searched for the one point at which its *old* state became its *new* one: that point and all that come
after it are new. Points that cannot be judged are `UNKNOWN`, and are never taken for either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

OLD, NEW, UNKNOWN = "old", "new", "unknown"
_AWAY = 4  # how much nearer to the middle a point must be to be worth judging near one that is unknown


@dataclass(frozen=True, kw_only=True)
class History:
    """Points that can be the changing one, each after its parents; the last is the new end.

    Everything that a point outside reaches is old. `parents` may name points outside.
    """

    points: tuple[str, ...]
    parents: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Judge:
    """Not decided yet: judge these points."""

    points: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The first new point."""

    point: str


@dataclass(frozen=True)
class Undecided:
    """It is one of these points, oldest first: those among them that are not known to be new cannot be judged."""

    points: tuple[str, ...]


def next_step(history: History, verdicts: Mapping[str, str], count: int = 1) -> Judge | Found | Undecided:
    """What follows from the verdicts (OLD, NEW or UNKNOWN by name). `count`: how many points to judge side by side.

    The new end must be NEW. Verdicts that contradict one another (the state changed more than once) leave a point that
    is NEW and nothing in it that is known to be so before.
    """
    index = {name: place for place, name in enumerate(history.points)}
    within = _reached(history, index)
    candidates = _candidates(index, within, verdicts)
    names = [name for name in history.points if candidates >> index[name] & 1]
    open_ = [name for name in names if name not in verdicts]
    if len(names) == 1 and verdicts.get(names[0]) == NEW:
        return Found(names[0])
    if not open_:
        return Undecided(tuple(names))
    reach = {name: (within[name] & candidates).bit_count() for name in names}
    unknown = [reach[name] for name in names if verdicts.get(name) == UNKNOWN]
    return Judge(_spread(open_, reach, unknown, len(names), count))


def _reached(history: History, index: Mapping[str, int]) -> dict[str, int]:
    """For each point the set of points that it reaches, itself included, as bits."""
    within: dict[str, int] = {}
    for name in history.points:
        bits = 1 << index[name]
        for parent in history.parents.get(name, ()):
            bits |= within.get(parent, 0)
        within[name] = bits
    return within


def _candidates(index: Mapping[str, int], within: Mapping[str, int], verdicts: Mapping[str, str]) -> int:
    """Points that every new point reaches and no old one; where verdicts contradict, those of one new point."""
    old = 0
    for name, verdict in verdicts.items():
        old |= within[name] if verdict == OLD and name in index else 0
    new = [within[name] & ~old for name, verdict in verdicts.items() if verdict == NEW and name in index]
    common = (1 << len(index)) - 1
    for bits in new:
        common &= bits
    return common or min((bits for bits in new if bits), key=int.bit_count)


def _spread(
    open_: Sequence[str], reach: Mapping[str, int], unknown: Sequence[int], size: int, count: int
) -> tuple[str, ...]:
    """Points that cut the candidates in equal parts, at some distance from those that could not be judged."""
    distance = {name: min((abs(reach[name] - other) for other in unknown), default=size) for name in open_}
    chosen: list[str] = []
    for number in range(1, min(count, len(open_)) + 1):
        middle = size * number / (count + 1)

        def worth(name: str, middle: float = middle) -> tuple[float, float]:
            off = abs(reach[name] - middle)
            return min(size - off, _AWAY * distance[name] + size / 2), -off

        chosen.append(max((name for name in open_ if name not in chosen), key=worth))
    return tuple(chosen)


def simplified(history: History, content: Mapping[str, str]) -> tuple[History, dict[str, str]]:
    """The history of some paths only, and by which point each other one is represented.

    `content`: what the paths hold at each point and at the parents outside. A point that holds what one of its parents
    holds is represented by it, and what its other parents did to the paths is of no account. Points that are
    represented by one outside are old.
    """
    inside = set(history.points)
    stands_for: dict[str, str] = {}
    parents: dict[str, tuple[str, ...]] = {}
    for name in history.points:
        before = history.parents.get(name, ())
        same = next((parent for parent in before if content[parent] == content[name]), None)
        if same is not None:
            stands_for[name] = stands_for.get(same, same)
        else:
            stands_for[name] = name
            parents[name] = tuple(dict.fromkeys(stands_for.get(parent, parent) for parent in before))
    end = stands_for[history.points[-1]]
    kept = _ancestors([end] if end in inside else [], parents)
    points = tuple(name for name in history.points if name in kept)
    return History(points=points, parents={name: parents[name] for name in points}), stands_for


def _ancestors(starts: Iterable[str], parents: Mapping[str, tuple[str, ...]]) -> set[str]:
    found: set[str] = set()
    ahead = list(starts)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += parents.get(name, ())
    return found
