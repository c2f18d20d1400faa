"""Assigns the GPUs of a node to the cells that run on it at the same time; two cells never share one. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def gpus_needed(device: str, ranks: int, total: int) -> int:
    """Number of GPUs that a cell with `ranks` ranks on the node takes.

    One per rank. A cell with more ranks than the node has GPUs shares all of them among its own ranks.
    `device`: as in core/hardware/devices.py; `total`: GPUs of the node.
    """
    return 0 if device == "cpu" else min(ranks, total)


def assign(free: Sequence[int], needed: int) -> tuple[int, ...] | None:
    """The GPUs of a cell among the free ones; None while too few are free.

    Consecutive ones if possible, since they are the best connected on most nodes.
    """
    order = sorted(free)
    if len(order) < needed:
        return None
    for start in range(len(order) - needed + 1):
        row = order[start : start + needed]
        if not row or row[-1] - row[0] == needed - 1:
            return tuple(row)
    return tuple(order[:needed])


class GpuSlices:
    """The GPUs of one node and the cells that hold them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: dict[str, tuple[int, ...]] = {}

    def fits(self, device: str, ranks: int) -> bool:
        """Whether a cell can start now."""
        return assign(self._free(), gpus_needed(device, ranks, self.total)) is not None

    def take(self, cell: str, device: str, ranks: int) -> tuple[int, ...] | None:
        """The GPUs that the cell's ranks may use, held until `release`; None for a node without GPUs.

        ValueError if too few are free: call `fits` first.
        """
        found = assign(self._free(), gpus_needed(device, ranks, self.total))
        if found is None:
            raise ValueError(f"too few free GPUs for {cell}: {self._free()} of {self.total}")
        self.held[cell] = found
        return found if self.total else None

    def release(self, cell: str) -> None:
        """Free the GPUs of a cell that has ended."""
        self.held.pop(cell, None)

    def _free(self) -> list[int]:
        taken = {index for part in self.held.values() for index in part}
        return [index for index in range(self.total) if index not in taken]
