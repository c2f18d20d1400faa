"""Parses `select` of a matrix file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.plan.matrix.axes import parse_row
from harness.plan.matrix.problems import KeyPath, Problems, shown
from harness.plan.schema.select import NAMES, PAIRS, CoveringSection

KEY: KeyPath = ("select",)


@dataclass(frozen=True, kw_only=True)
class Covering:
    """A covering selection. `keep` holds patterns over cell names, and values by axis name."""

    strength: int = PAIRS
    keep: tuple[str | Mapping[str, Any], ...] = ()
    written: tuple[Any, ...] = ()  # `keep` as the file has it

    def section(self) -> dict[str, Any]:
        """The section as in a matrix file."""
        return {"covering": self.strength, "keep": list(self.written)}


def parse_select(section: Any, problems: Problems) -> Covering | None:
    """The covering selection, or None to run every cell; everything wrong with it is added to `problems`."""
    if section == "full":
        return None
    if section == "covering":
        return Covering()
    if not isinstance(section, Mapping):
        allowed = f"{', '.join(NAMES)}, or a mapping like {{covering: 3}}"
        problems.add(KEY, "unknown selection", found=shown(section), allowed=allowed)
        return None
    checked = problems.validate(CoveringSection, section, KEY)
    if checked is None:
        return None
    keep: list[str | Mapping[str, Any]] = []
    for number, item in enumerate(checked.keep):
        row = item if isinstance(item, str) else parse_row(item, (*KEY, "keep", number), problems)
        if row:
            keep.append(row if isinstance(row, str) else row.values)
    return Covering(strength=checked.covering, keep=tuple(keep), written=tuple(checked.keep))
