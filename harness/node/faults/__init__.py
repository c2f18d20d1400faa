"""Faults injected at run time: each breaks a data path's batches, the model, the loss or the step of a cell.

harness/plan/faults describes each fault under the same name: the bug it is modelled on, and where it must be caught.
"""

from __future__ import annotations

from harness.node.faults.fault import Fault
from harness.node.faults.table import FAULTS

__all__ = ["FAULTS", "Fault", "fault_named"]


def fault_named(name: str | None) -> Fault:
    """A new instance of the fault with this name; the clean run for None. KeyError for an unknown name."""
    return Fault() if name is None else FAULTS[name]()
