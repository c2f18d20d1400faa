"""`enum.StrEnum` of Python 3.11: members are text, and print and format as their values."""

from __future__ import annotations

from enum import Enum


class StrEnum(str, Enum):
    """Stands in for `enum.StrEnum` on Python 3.10, on which the node side also runs."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)
