"""Launch and validation harness for sequence packing in Megatron training.

The Python interface (docs/api.md) is loaded when one of its names is first used: ranks import this package too, in
environments that lack what the launcher needs.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "CellChange",
    "Comparison",
    "Expansion",
    "Finding",
    "HarnessError",
    "InfrastructureError",
    "InputError",
    "InternalError",
    "InterruptedRun",
    "Outcome",
    "PlannedCell",
    "Problem",
    "RejectedCell",
    "Report",
    "ReportCell",
    "ReportRejected",
    "compare",
    "expand",
    "read_report",
    "report",
    "run",
    "run_folder",
]

if TYPE_CHECKING:
    from harness.cli.api import (
        CellChange,
        Comparison,
        Expansion,
        Finding,
        HarnessError,
        InfrastructureError,
        InputError,
        InternalError,
        InterruptedRun,
        Outcome,
        PlannedCell,
        Problem,
        RejectedCell,
        Report,
        ReportCell,
        ReportRejected,
        compare,
        expand,
        read_report,
        report,
        run,
        run_folder,
    )


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.cli import api

    return getattr(api, name)
