"""NeMo-RL's sequence packing algorithms (nemo_rl.data.packing.algorithms), by their definitions. Pure."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.core.packing.sharing import Bins, checked_size, decreasing, first_fit, in_turn, multiplied

SHUFFLE_SEED = 0  # of Python's generator, which upstream's driver seeds too


def concatenative(sizes: Sequence[int], capacity: int) -> Bins:
    """Documents in order; one that does not fit begins a bin."""
    bins: Bins = []
    used = capacity
    for document, size in enumerate(sizes):
        if used + checked_size(size, capacity) > capacity:
            bins.append([])
            used = 0
        bins[-1].append(document)
        used += size
    return bins


def first_fit_decreasing(sizes: Sequence[int], capacity: int) -> Bins:
    """First fit, from the largest document to the smallest."""
    return first_fit(decreasing(sizes), sizes, capacity)


def first_fit_shuffle(sizes: Sequence[int], capacity: int) -> Bins:
    """First fit, in random order."""
    order = [*range(len(sizes))]
    random.Random(SHUFFLE_SEED).shuffle(order)
    return first_fit(order, sizes, capacity)


def modified_first_fit_decreasing(sizes: Sequence[int], capacity: int) -> Bins:
    """Return the bins of Johnson and Garey's heuristic ("A 71/60 theorem for bin packing", 1985).

    Large documents, of more than half of a bin, begin one each. From the first bin on, each gets the largest medium one
    (above a third) that fits; from the last one back, those without a medium one get the smallest of the small ones
    (above a sixth) and the largest that fits beside it. What is left fills these bins, the largest first; the rest
    goes, from the largest on, into the emptiest further bin, or begins one.
    """
    parts = _by_size(sizes, capacity)
    large, medium, small, tiny = parts
    bins: Bins = [[document] for document in large]
    free = [capacity - sizes[document] for document in large]

    def put(number: int, document: int, out_of: list[int]) -> None:
        out_of.remove(document)
        bins[number].append(document)
        free[number] -= sizes[document]

    for number in range(len(bins)):
        if (fits := _first_that_fits(medium, sizes, free[number])) is not None:
            put(number, fits, medium)
    for number in reversed(range(len(bins))):
        if len(bins[number]) > 1 or len(small) < 2 or sizes[small[0]] + sizes[small[1]] > free[number]:
            continue
        put(number, small[0], small)
        put(number, next(one for one in reversed(small) if sizes[one] <= free[number]), small)
    left = sorted([*medium, *small, *tiny], key=lambda document: -sizes[document])
    for number in range(len(bins)):
        while (fits := _first_that_fits(left, sizes, free[number])) is not None:
            put(number, fits, left)
    return bins + _into_the_emptiest(left, sizes, capacity)


def _by_size(sizes: Sequence[int], capacity: int) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return large, medium, small and tiny documents, the first two from the largest on, the others from the smallest
    on; equal ones in order.
    """
    parts: tuple[list[int], ...] = ([], [], [], [])
    for document, size in enumerate(sizes):
        checked_size(size, capacity)
        parts[sum(share * size <= capacity for share in (2, 3, 6))].append(document)
    falling = [sorted(part, key=lambda document: -sizes[document]) for part in parts[:2]]
    rising = [sorted(part, key=lambda document: sizes[document]) for part in parts[2:]]
    return falling[0], falling[1], rising[0], rising[1]


def _first_that_fits(documents: Sequence[int], sizes: Sequence[int], room: int) -> int | None:
    return next((document for document in documents if sizes[document] <= room), None)


def _into_the_emptiest(documents: Sequence[int], sizes: Sequence[int], capacity: int) -> Bins:
    """Return bins from the emptiest to the fullest; of equally full ones, the one that was filled last comes last."""
    bins: Bins = []
    used: list[int] = []
    for document in documents:
        fits = bool(bins) and used[0] + sizes[document] <= capacity
        filled, total = (bins.pop(0), used.pop(0)) if fits else ([], 0)
        total += sizes[document]
        place = bisect_right(used, total)
        bins.insert(place, [*filled, document])
        used.insert(place, total)
    return bins


ALGORITHMS: dict[str, Callable[[Sequence[int], int], Bins]] = {
    function.__name__: function
    for function in (concatenative, first_fit_decreasing, first_fit_shuffle, modified_first_fit_decreasing)
}


@dataclass(frozen=True, kw_only=True)
class ShardByBatchSize:
    """BatchedDataDict.shard_by_batch_size with sequence_packing_args; sizes are padded."""

    algorithm: str
    capacity: int
    replicas: int

    def __call__(self, sizes: Sequence[int]) -> list[Bins]:
        bins = ALGORITHMS[self.algorithm](sizes, self.capacity)
        return in_turn(multiplied(bins, self.replicas), self.replicas)
