"""Delta debugging over the dimensions of a cell: which smaller cells to try next, and which to continue from.

Pure: `search` yields cells and receives answers. A round first tries rungs: each rung reduces one dimension more than
the one before, as far as it goes, so that everything that does not matter is removed at once. Later rounds also try
every single reduction, so that the result is minimal: no single reduction of it reproduces the finding.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from harness.core.cell.canary_legs import LEG_NAMES
from harness.core.cell.config import CellConfig
from harness.core.cell.timing import NOT_TIMED
from harness.core.outcomes import Finding, Lane
from harness.plan.rules.table import rejections
from harness.plan.shrink.reductions import (
    DIMENSIONS,
    Dimension,
    Reduction,
    changes,
    listed,
    normalized,
    reductions,
    shown,
    size_of,
)

SHORTEST_DEADLINE_S = 30.0  # of a cell that is tried


class Kind(str, Enum):
    SAME = "same"  # fails with the same finding
    PASSES = "passes"
    DIFFERS = "differs"  # fails, but with another finding
    UNUSABLE = "unusable"  # rejected, or could not be judged


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The result of a cell that was tried."""

    kind: Kind
    text: str = ""  # as a predicate: "passes", "fails in another way (numerics: document_loss)", "is rejected: ..."


@dataclass(frozen=True, kw_only=True)
class Step:
    """A round that made the cell smaller."""

    round: int  # from 1
    changes: tuple[str, ...]  # "pp 4 -> 3"


@dataclass(frozen=True, kw_only=True)
class Needed:
    """A dimension that cannot be reduced, and what happens if it is."""

    dimension: str
    text: str  # "pp >= 3", "sp", "2 documents"
    without: str  # "with pp 2 it passes"
    judged: bool  # False: no smaller value could be judged


@dataclass(frozen=True, kw_only=True)
class Smallest:
    """The smallest cell found. `config` None: the finding did not reproduce at all."""

    config: CellConfig | None
    steps: tuple[Step, ...]
    needs: tuple[Needed, ...]
    rounds: int
    tried: int  # cells that were run
    minimal: bool  # False: the limit of rounds was reached


Round = tuple[CellConfig, ...]
Answers = Mapping[CellConfig, Answer]


def minimal_cell(config: CellConfig, finding: Finding, took_s: float) -> CellConfig:
    """The cell with only the canaries and timing that its finding needs, and a shorter deadline.

    `took_s`: seconds that the cell ran. A hung cell ran to its deadline; smaller cells hang sooner.
    """
    leg = str(finding.where.get("leg", ""))
    needed = leg if leg in LEG_NAMES else finding.check
    canaries = tuple(name for name in config.canaries if needed.startswith(name))
    timing = replace(config.timing, turns="", first=False) if finding.lane is Lane.THROUGHPUT else NOT_TIMED
    wanted = 4 * took_s if took_s < config.deadline_s else config.deadline_s / 2
    deadline = min(config.deadline_s, max(wanted, SHORTEST_DEADLINE_S))
    return replace(config, canaries=canaries, timing=timing, deadline_s=deadline)


def search(start: CellConfig, most_rounds: int) -> Generator[Round, Answers, Smallest]:
    """Yields the cells of a round, receives an answer for each, and returns the smallest cell. Deterministic."""
    known: dict[CellConfig, Answer] = {}
    steps: list[Step] = []
    starts = [config for config in map(normalized, (start, listed(start))) if config is not None]
    current = starts[0]
    rounds, tried = 0, 0
    while rounds < most_rounds:
        requested = _round(current, known, () if rounds else starts)
        if not requested:
            break
        rounds += 1
        tried += len(requested)
        answers = yield requested
        known.update(answers)
        same = [config for config in requested if known[config].kind is Kind.SAME]
        if not same and rounds == 1:
            return Smallest(config=None, steps=(), needs=(), rounds=1, tried=tried, minimal=False)
        smallest = min(same, key=size_of, default=current)
        if smallest != current:
            steps.append(Step(round=rounds, changes=changes(current, smallest)))
            current = smallest
    minimal = not _round(current, known)
    needs = tuple(_needs(current, known)) if minimal else ()
    return Smallest(config=current, steps=tuple(steps), needs=needs, rounds=rounds, tried=tried, minimal=minimal)


def _round(current: CellConfig, known: dict[CellConfig, Answer], starts: Sequence[CellConfig] = ()) -> Round:
    """The cells to try in a round. Single reductions wait for later rounds, when the cell is cheaper to run."""
    wanted = [*starts, *_rungs(current, known), *(() if starts else _singles(current))]
    return tuple(config for config in dict.fromkeys(wanted) if _open(config, known))


def _open(config: CellConfig, known: dict[CellConfig, Answer]) -> bool:
    """Whether a cell must be run to know its answer; a cell that a rule rejects is answered here, in `known`."""
    if config in known:
        return False
    found = rejections(config)
    if found:
        known[config] = Answer(kind=Kind.UNUSABLE, text=f"is rejected: {found[0].reason}")
    return not found


def _singles(current: CellConfig) -> Iterator[CellConfig]:
    yield from (reduction.config for reduction in reductions(current))


def _rungs(current: CellConfig, known: dict[CellConfig, Answer]) -> Iterator[CellConfig]:
    """Each rung reduces one more dimension as far as it goes; a reduction known to lose the finding is left out."""
    lost = {
        (item.dimension.name, item.to)
        for item in reductions(current)
        if item.config in known and known[item.config].kind in (Kind.PASSES, Kind.DIFFERS)
    }
    config = current
    for dimension in DIMENSIONS:
        chosen = next(
            (item for item in _usable(config, dimension, known) if (dimension.name, item.to) not in lost), None
        )
        if chosen is not None:
            config = chosen.config
            yield config


def _usable(config: CellConfig, dimension: Dimension, known: dict[CellConfig, Answer]) -> Iterator[Reduction]:
    for item in reductions(config, (dimension,)):
        if _open(item.config, known) or known[item.config].kind is Kind.SAME:
            yield item


def _needs(config: CellConfig, known: Answers) -> Iterator[Needed]:
    """Dimensions that cannot be reduced, ranks first, with the answer of the next smaller cell, a judged one if any."""
    for dimension in reversed(DIMENSIONS):
        found = [(item, known[item.config]) for item in reductions(config, (dimension,)) if item.config in known]
        judged = [pair for pair in found if pair[1].kind is not Kind.UNUSABLE]
        if not found or dimension.name == "lengths":
            continue
        item, answer = max(judged or found, key=lambda pair: size_of(pair[0].config))
        yield _needed(dimension, config, item, answer)


def _needed(dimension: Dimension, config: CellConfig, item: Reduction, answer: Answer) -> Needed:
    if dimension.count is None:
        now, then = shown(dimension.value(config)), shown(item.to)
        text, less = f"{dimension.name} {now}", f"{dimension.name} {then}"
    elif dimension.name == "documents":
        text, less = f"documents {dimension.value(config)}", f"{item.to}"
    else:
        text, less = f"{dimension.name} >= {dimension.count(config)}", f"{dimension.name} {item.to}"
    return Needed(
        dimension=dimension.name,
        text=text,
        without=f"with {less} it {answer.text}",
        judged=answer.kind is not Kind.UNUSABLE,
    )
