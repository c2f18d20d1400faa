"""First-fit decreasing, as data paths that pack offline do it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.packing.documents import Document
from harness.core.packing.styles import PackingStyle


def first_fit(documents: Sequence[Document], style: PackingStyle, seq_length: int) -> list[list[Document]]:
    """First-fit decreasing; documents of equal length keep their order."""
    groups: list[list[Document]] = []
    free = _FreeSlots(len(documents), seq_length)
    sizes = [(style.size(document), document) for document in documents]
    for size, document in sorted(sizes, key=lambda item: -item[0]):
        row = len(groups) if size > seq_length else free.first(size)
        if row == len(groups):
            groups.append([])
        groups[row].append(document)
        free.take(row, size)
    return groups


class _FreeSlots:
    """Free slots of each row, as a tree of maxima: the first row with enough room is found in log(rows) steps."""

    def __init__(self, rows: int, room: int) -> None:
        self._leaves = 1 << max(rows - 1, 0).bit_length()
        self._most = [room] * (2 * self._leaves)  # node n has the children 2 n and 2 n + 1; rows are the last level

    def first(self, size: int) -> int:
        """The first row with at least `size` free slots, which may be the first empty one."""
        node = 1
        while node < self._leaves:
            node *= 2
            node += self._most[node] < size
        return node - self._leaves

    def take(self, row: int, size: int) -> None:
        node = row + self._leaves
        self._most[node] -= size
        while node > 1:
            node //= 2
            self._most[node] = max(self._most[2 * node], self._most[2 * node + 1])
