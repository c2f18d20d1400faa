"""Faults injected at run time: each breaks a data path's batches, the model, the loss or the step of a cell.

What each fault is modelled on, and where it must be caught, stands in harness/plan/faults under the same name.
"""

from __future__ import annotations

from harness.node.faults.seams import Fault
from harness.node.faults.table import FAULTS

__all__ = ["FAULTS", "Fault", "fault_named"]


def fault_named(name: str | None) -> Fault:
    """The fault of that name, or the clean run for None. KeyError for an unknown name."""
    return Fault() if name is None else FAULTS[name]()
