"""Chooses which points of a history to judge next, and interprets their verdicts. Pure: names in, names out.

The search is for the one point at which the *old* state became the *new* one: that point and all its descendants are
new. Points that cannot be judged are `UNKNOWN` and count as neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.infra.git_history import History

OLD, NEW, UNKNOWN = "old", "new", "unknown"
_DISTANCE_WEIGHT = 4  # distance from the nearest unknown point against nearness to the middle


@dataclass(frozen=True)
class Judge:
    """Not decided yet: judge these points next."""

    points: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The first new point."""

    point: str


@dataclass(frozen=True)
class Undecided:
    """The first new point is one of these, oldest first; those not known to be new cannot be judged."""

    points: tuple[str, ...]


def next_step(history: History, verdicts: Mapping[str, str], count: int = 1) -> Judge | Found | Undecided:
    """Return the next step, by the verdicts so far: name -> OLD, NEW or UNKNOWN. `count`: how many points at once.

    The new end must be NEW. If verdicts contradict each other (the state changed more than once), the search narrows to
    one of the changes.
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
    """Return point -> the point itself and its ancestors in the history, as a bit set."""
    within: dict[str, int] = {}
    for name in history.points:
        bits = 1 << index[name]
        for parent in history.parents.get(name, ()):
            bits |= within.get(parent, 0)
        within[name] = bits
    return within


def _candidates(index: Mapping[str, int], within: Mapping[str, int], verdicts: Mapping[str, str]) -> int:
    """Return the points (a bit set) that all NEW points reach and no OLD one; on contradiction, of one NEW point."""
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
    """Return points that cut the candidates in equal parts, at some distance from those that could not be judged."""
    distance = {name: min((abs(reach[name] - reached) for reached in unknown), default=size) for name in open_}
    chosen: list[str] = []
    for number in range(1, min(count, len(open_)) + 1):
        middle = size * number / (count + 1)

        def worth(name: str, middle: float = middle) -> tuple[float, float]:
            off = abs(reach[name] - middle)
            return min(size - off, _DISTANCE_WEIGHT * distance[name] + size / 2), -off

        chosen.append(max((name for name in open_ if name not in chosen), key=worth))
    return tuple(chosen)


def simplified(history: History, content: Mapping[str, str]) -> tuple[History, dict[str, str]]:
    """Return the history of some paths only, as `git log -- PATH` simplifies it; and each point's representative.

    `content`: what the paths hold at each point and at the parents outside. A point with the content of one of its
    parents is represented by that parent, and its other parents are ignored. A point represented by one outside is old.
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
    ancestors: set[str] = set()
    ahead = list(starts)
    while ahead:
        name = ahead.pop()
        if name not in ancestors:
            ancestors.add(name)
            ahead += parents.get(name, ())
    return ancestors
