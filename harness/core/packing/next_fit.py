"""Next fit, as data paths that pack while they read do it, and the splitting of its rows."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.packing.documents import Document
from harness.core.packing.styles import PackingStyle


def next_fit(documents: Sequence[Document], style: PackingStyle, seq_length: int) -> list[list[Document]]:
    """Documents in order, or with `descending` from the longest to the shortest, equal ones in order."""
    if style.descending:
        documents = sorted(documents, key=lambda document: document.length, reverse=True)
    groups: list[list[Document]] = []
    used = 0
    for document in documents:
        size = style.size(document)
        full = bool(groups) and len(groups[-1]) == style.most_documents
        if groups and not full and style.packed and not style.one_per_row and used + size <= seq_length:
            groups[-1].append(document)
            used += size
        else:
            groups.append([document])
            used = size
    return groups


def split_widest(groups: list[list[Document]]) -> bool:
    """Halve the row with the most documents; False if every row has only one."""
    widest = max(range(len(groups)), key=lambda index: len(groups[index]))
    half = len(groups[widest]) // 2
    if half:
        groups[widest : widest + 1] = [groups[widest][:half], groups[widest][half:]]
    return half > 0


def split_last(groups: list[list[Document]], made: int, first: bool) -> bool:
    """Move the last document of the last row with several documents to a new row at the end.

    Only the first `made` rows are split, the first one with `first` only, as in
    megatron.core.datasets.data_schedule.DpBalancedScheduler.get_groups_and_subsamples.
    """
    last = next((index for index in range(made - 1, -1 if first else 0, -1) if len(groups[index]) > 1), None)
    if last is not None:
        groups.append([groups[last].pop()])
    return last is not None
