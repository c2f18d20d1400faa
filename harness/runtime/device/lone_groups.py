"""Process groups of one rank share a gloo device, on a CPU.

Megatron makes about twenty groups in every rank, most of them of that rank alone. Each group over gloo has a device,
whose thread wakes a hundred times a second: a tenth of the processor time of a small cell. A group of one rank never
connects, so one device serves all of them. Groups of several ranks keep their own, because ranks hung in the first
collective when these shared a device (torch 2.15).
"""

from __future__ import annotations

from typing import Any

from torch.distributed import distributed_c10d

_ProcessGroupGloo: Any = distributed_c10d.ProcessGroupGloo
_devices: list[Any] = []  # of the first group of one rank


class LoneGroups(_ProcessGroupGloo):  # type: ignore[misc]  # Any, since its options are not in torch's stub
    """torch's ProcessGroupGloo, called as torch.distributed.distributed_c10d does: store, rank, size, timeout."""

    def __init__(self, store: Any, rank: int, size: int, *more: Any, **named: Any) -> None:
        # An option that this class does not know goes to torch, so that a later release at worst loses the saving.
        options_set = {name for name, value in named.items() if value}
        if size > 1 or more or options_set != {"timeout"}:
            super().__init__(store, rank, size, *more, **named)
            return
        if not _devices:
            super().__init__(store, rank, size, **named)
            _devices.extend(self.options._devices)
            return
        options = _ProcessGroupGloo._Options()
        options._timeout, options._devices, options._threads = named["timeout"], _devices, 1
        super().__init__(store, rank, size, options)


def rows() -> list[tuple[Any, str, Any]]:
    """Return, for cpu_stubs.replace, the class that torch makes groups over gloo of."""
    return [(distributed_c10d, "ProcessGroupGloo", LoneGroups)]
