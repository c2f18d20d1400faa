"""What a check returns: a finding without the check's name and lane, which its row in table.py says."""

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
