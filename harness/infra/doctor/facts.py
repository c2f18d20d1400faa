"""A result of `harness doctor`: one line with its level and its fix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Level = Literal["ok", "warn", "FAIL"]
OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "FAIL"


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    level: Level
    what: str
    detail: str
    fix: str = ""


def line(check: Check) -> str:
    return f"{check.level:<4}  {check.what:<16}  {check.detail}" + (f"  ({check.fix})" if check.fix else "")
