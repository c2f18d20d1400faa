"""The search over random histories never names a wrong point, and judges few points."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.infra.git_history import History
from harness.triage.bisect.search import NEW, OLD, UNKNOWN, Found, Judge, Undecided, next_step, simplified


def linear(size: int) -> History:
    names = [f"c{number}" for number in range(size)]
    return History(points=tuple(names), parents={name: (before,) for name, before in zip(names, ["good", *names])})


@st.composite
def histories(draw: st.DrawFn, most: int = 40) -> History:
    """A graph in which the last point reaches all others; parents may be outside."""
    size = draw(st.integers(1, most))
    parents: dict[str, tuple[str, ...]] = {}
    for number in range(size):
        known = ["good", *parents]
        chosen = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        parents[f"c{number}"] = tuple(chosen)
    reached = ancestors(parents, f"c{size - 1}")
    points = tuple(name for name in parents if name in reached)
    return History(points=points, parents={name: parents[name] for name in points})


def ancestors(parents: Mapping[str, Collection[str]], start: str) -> set[str]:
    found, ahead = set(), [start]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += parents.get(name, ())
    return found


def search(
    history: History, guilty: str, unknown: Collection[str] = (), count: int = 1
) -> tuple[Found | Undecided, dict[str, str]]:
    """Search to the end; returns the result and all verdicts, that of the new end included."""

    def verdict(name: str) -> str:
        if name in unknown:
            return UNKNOWN
        return NEW if guilty in ancestors(history.parents, name) else OLD

    verdicts = {history.points[-1]: NEW}
    while isinstance(step := next_step(history, verdicts, count), Judge):
        assert 1 <= len(step.points) <= count
        assert len(set(step.points)) == len(step.points)
        assert not set(step.points) & set(verdicts)
        verdicts |= {name: verdict(name) for name in step.points}
    return step, verdicts


@given(histories(), st.data(), st.integers(1, 4))
def test_the_changing_point_is_found_whatever_the_graph(history: History, data: st.DataObject, count: int) -> None:
    guilty = data.draw(st.sampled_from(history.points))
    end, verdicts = search(history, guilty, count=count)
    assert end == Found(guilty)
    assert verdicts[guilty] == NEW


@given(histories(), st.data(), st.integers(1, 4))
def test_no_wrong_point_is_named_when_some_cannot_be_judged(history: History, data: st.DataObject, count: int) -> None:
    guilty = data.draw(st.sampled_from(history.points))
    unknown = data.draw(st.sets(st.sampled_from(history.points))) - {history.points[-1]}
    end, verdicts = search(history, guilty, unknown, count)
    if isinstance(end, Found):
        assert end.point == guilty
        assert verdicts[guilty] == NEW
    else:
        assert guilty in end.points
        assert set(end.points) & unknown
        assert all(verdicts[name] in (UNKNOWN, NEW) for name in end.points)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 255, 256, 257, 460, 500])
def test_a_line_takes_no_more_verdicts_than_halving_it(size: int) -> None:
    history = linear(size)
    for number in range(0, size, max(1, size // 25)):
        end, verdicts = search(history, f"c{number}")
        assert end == Found(f"c{number}")
        assert len(verdicts) + 1 <= math.ceil(math.log2(size)) + 2  # with both ends


def test_three_at_a_time_quarter_the_line_in_every_round() -> None:
    history, rounds = linear(500), 0
    verdicts = {"c499": NEW}
    while isinstance(step := next_step(history, verdicts, 3), Judge):
        rounds += 1
        verdicts |= {name: NEW if int(name[1:]) >= 321 else OLD for name in step.points}
    assert (step, rounds <= math.ceil(math.log(500, 4)) + 1) == (Found("c321"), True)


def test_the_search_leaves_a_block_that_cannot_be_judged_by_growing_steps() -> None:
    """For example, a hundred commits in the middle that do not import."""
    block = {f"c{number}" for number in range(200, 300)}
    for guilty in ("c3", "c150", "c350", "c498"):
        end, verdicts = search(linear(500), guilty, block)
        assert end == Found(guilty)
        assert len(block & set(verdicts)) <= 8


def test_a_change_between_points_that_cannot_be_judged_stays_undecided() -> None:
    end, _ = search(linear(10), "c5", {"c4", "c5"})
    assert end == Undecided(("c4", "c5", "c6"))


def test_a_merge_is_named_only_when_all_its_parents_are_old() -> None:
    parents = {"a": ("good",), "b": ("good",), "m": ("a", "b"), "top": ("m",)}
    history = History(points=("a", "b", "m", "top"), parents=parents)
    assert search(history, "m")[0] == Found("m")
    assert search(history, "b")[0] == Found("b")
    verdicts = {"top": NEW, "m": NEW, "a": OLD}
    assert next_step(history, verdicts) == Judge(("b",))


def test_a_history_that_changed_back_and_forth_still_gives_a_point_that_is_new() -> None:
    history, pattern = linear(9), "NOONNOONN"
    verdicts = {"c8": NEW}
    while isinstance(step := next_step(history, verdicts, 2), Judge):
        verdicts |= {name: NEW if pattern[int(name[1:])] == "N" else OLD for name in step.points}
    assert isinstance(step, Found)
    number = int(step.point[1:])
    assert pattern[number] == "N"
    assert number == 0 or pattern[number - 1] == "O"


@given(histories(), st.data())
def test_with_paths_only_points_that_change_them_are_judged(history: History, data: st.DataObject) -> None:
    """Content as in git: a point keeps a parent's, or has new content."""
    content, changing = {"good": "good"}, []
    for name in history.points:
        inherited = data.draw(st.sampled_from([content[parent] for parent in history.parents[name]] + [name]))
        content[name] = inherited
        changing += [name] if inherited == name else []
    small, stands_for = simplified(history, content)
    assert set(small.points) <= set(changing)
    for name in history.points:
        assert content[stands_for[name]] == content[name]
    if small.points:
        assert content[small.points[-1]] == content[history.points[-1]]
        guilty = data.draw(st.sampled_from(small.points))
        assert search(small, guilty)[0] == Found(guilty)


def test_paths_follow_the_side_of_a_merge_that_they_come_from() -> None:
    parents = {"a": ("good",), "b": ("good",), "m": ("a", "b"), "top": ("m",)}
    history = History(points=("a", "b", "m", "top"), parents=parents)
    content = {"good": "0", "a": "0", "b": "1", "m": "1", "top": "1"}
    small, stands_for = simplified(history, content)
    assert small == History(points=("b",), parents={"b": ("good",)})
    assert stands_for == {"a": "good", "b": "b", "m": "b", "top": "b"}


def test_paths_that_nothing_touched_leave_no_point() -> None:
    history = linear(5)
    small, _ = simplified(history, dict.fromkeys(["good", *history.points], "same"))
    assert small.points == ()


def test_the_choice_is_the_same_every_time() -> None:
    names = [f"c{number}" for number in range(100)]
    random.Random(1).shuffle(names)
    history = History(points=tuple(names), parents={name: (before,) for name, before in zip(names, ["g", *names])})
    verdicts = {names[-1]: NEW, names[50]: UNKNOWN}
    assert len({next_step(history, verdicts, 3) for _ in range(5)}) == 1
