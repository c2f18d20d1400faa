"""The return value of a check: a finding without name and lane, which come from the row in table.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.core.outcomes import Severity


@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """Fields are those of harness.core.outcomes.Finding."""

    message: str
    severity: Severity = Severity.ERROR
    fault_class: str | None = None
    where: dict[str, Any] = field(default_factory=dict)
    measured: Any = None
    bound: Any = None
