"""verl's dynamic batch sizes (verl.utils.seqlen_balancing 0.9), by their definitions. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.packing.sharing import Bins, checked_size

Part = tuple[int, int, tuple[tuple[int, int], ...]]  # sum of workloads, number of documents, (document, workload)
Partition = tuple[int, list[Part]]  # the difference of the largest and the smallest sum; parts from the largest sum on
_EMPTY: Part = (0, 0, ())


def workload(length: int) -> int:
    """The work of a document of this many tokens, linear layers and attention: `calculate_workload`."""
    return 24576 * length + length**2


def balanced(workloads: Sequence[int], parts: int, *, equal_size: bool) -> Bins:
    """Return positions of documents in `parts` parts of about equal work, each in order: Karmarkar and Karp, 1982.

    Partitions with the largest differences are joined, the largest part of one with the smallest of the other, until
    one is left. `equal_size`: parts have equal numbers of documents. Upstream's order of equal ones is followed.
    ValueError if there are fewer documents than parts.
    """
    if len(workloads) < parts:
        raise ValueError(f"{len(workloads)} documents cannot make {parts} micro-batches")
    rising = sorted((work, document) for document, work in enumerate(workloads))
    together = parts if equal_size else 1
    partitions: list[Partition] = []
    for start in range(0, len(rising), together):
        singles: list[Part] = [(work, 1, ((document, work),)) for work, document in rising[start : start + together]]
        insort(partitions, _partition(singles + [_EMPTY] * (parts - len(singles))), key=_difference)
    while len(partitions) > 1:
        (_, one), (_, other) = partitions.pop(), partitions.pop()
        joined = [(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in zip(one, reversed(other))]
        insort(partitions, _partition(joined), key=_difference)
    return [sorted(document for document, _ in items) for _, _, items in partitions[0][1]]


def _partition(parts: list[Part]) -> Partition:
    falling = sorted(parts, reverse=True)
    return falling[0][0] - falling[-1][0], falling


def _difference(partition: Partition) -> tuple[int, Part]:
    return partition[0], partition[1][0]


@dataclass(frozen=True, kw_only=True)
class DynamicBatches:
    """prepare_micro_batches with use_dynamic_bsz, after the controller's balance_batch; sizes are unpadded."""

    capacity: int  # max_token_len_per_gpu of all context ranks together
    replicas: int
    multiple: int  # of the number of micro-batches of a replica, when interleaved
    balance: bool  # replicas get equal work; otherwise documents in order

    def __call__(self, sizes: Sequence[int]) -> list[Bins]:
        if not sizes or len(sizes) % self.replicas:
            raise ValueError(f"{len(sizes)} documents cannot be shared evenly by dp = {self.replicas} replicas")
        shares = self._shares(sizes)
        counts = [min(len(share), -(-sum(sizes[one] for one in share) // self.capacity)) for share in shares]
        count = -(-max(counts) // self.multiple) * self.multiple
        for size in sizes:
            checked_size(size, self.capacity)
        while True:
            found = [self._micro_batches(share, sizes, count) for share in shares]
            if all(sum(sizes[one] for one in batch) <= self.capacity for bins in found for batch in bins):
                return found
            count += self.multiple

    def _shares(self, sizes: Sequence[int]) -> Bins:
        """Return the documents of each replica, in order."""
        each = len(sizes) // self.replicas
        if not self.balance:
            return [[*range(replica * each, (replica + 1) * each)] for replica in range(self.replicas)]
        works = [workload(size) for size in sizes]
        shares = balanced(works, self.replicas, equal_size=True)
        rising = [sorted(share, key=lambda document: (works[document], document)) for share in shares]
        return [share[::2] + share[1::2][::-1] for share in rising]  # light ones at both ends

    def _micro_batches(self, share: Sequence[int], sizes: Sequence[int], count: int) -> Bins:
        """Return the micro-batches of a replica, those with the least work at both ends."""
        works = [workload(sizes[document]) for document in share]
        bins = balanced(works, count, equal_size=False)
        bins.sort(key=lambda places: (sum(works[place] for place in places), places[0]), reverse=True)
        return [[share[place] for place in places] for places in bins[::2][::-1] + bins[1::2]]
