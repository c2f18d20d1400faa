"""Controllers that share out a step: which documents each replica gets, and in which micro-batches.

They know all documents of a step and the number of replicas, so rows are not split afterwards. Sizes are in tokens.
What only one project does is in its folder: nemo_rl/packing.py, verl/packing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Bins = list[list[int]]  # positions of documents, for each micro-batch


def first_fit(order: Sequence[int], sizes: Sequence[int], capacity: int) -> Bins:
    """Return the bins that get each document, in this order, in the first one with room.

    ValueError if a document is larger than a bin.
    """
    bins: Bins = []
    free: list[int] = []
    for document in order:
        size = checked_size(sizes[document], capacity)
        place = next((number for number, room in enumerate(free) if room >= size), len(bins))
        if place == len(bins):
            bins.append([])
            free.append(capacity)
        bins[place].append(document)
        free[place] -= size
    return bins


def decreasing(sizes: Sequence[int]) -> list[int]:
    """Return positions from the largest to the smallest size; of equal ones the last comes first."""
    return sorted(range(len(sizes)), key=lambda document: (sizes[document], document), reverse=True)


def checked_size(size: int, capacity: int) -> int:
    """Return the size; ValueError if it exceeds the capacity of a bin."""
    if size > capacity:
        raise ValueError(f"a document of {size} tokens does not fit a micro-batch of {capacity} tokens")
    return size


def multiplied(bins: Bins, replicas: int) -> Bins:
    """Return as many bins as the replicas can share evenly: `_adjust_bin_count` of NeMo-RL and SkyRL.

    Each further bin gets one document, the last of the bin that had the most at first, while that has more than one.
    ValueError if there are too few documents.
    """
    wanted = -(-max(len(bins), 1) // replicas) * replicas
    documents = sum(map(len, bins))
    if documents < wanted:
        raise ValueError(f"{documents} documents cannot make {wanted} micro-batches, a multiple of dp = {replicas}")
    made = [list(given) for given in bins]
    sources = iter(sorted(range(len(bins)), key=lambda number: (len(bins[number]), number), reverse=True))
    source = next(sources)
    while len(made) < wanted:
        while len(made[source]) == 1:
            source = next(sources)
        made.append([made[source].pop()])
    return made


def in_turn(bins: Bins, replicas: int) -> list[Bins]:
    """Return the bins of each replica: one in turn."""
    return [bins[replica::replicas] for replica in range(replicas)]


Share = Callable[[Sequence[int]], list[Bins]]  # of the sizes of a step's documents, the bins of every replica
