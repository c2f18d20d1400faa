"""The line of metrics that upstream prints after a step."""

from __future__ import annotations

import re

from harness.core.cell.reports import PRINTED

_ITERATION = re.compile(r"\]\s*iteration\s+(\d+)/\s*(\d+)\s*$")  # after the time, in brackets


def printed_fields(line: str) -> dict[str, str]:
    """The values of the fields PRINTED, as they were printed; empty if this is another kind of line.

    " [2026-08-01 10:00:00] iteration        2/       3 | consumed samples:            8 | ..." gives
    {"iteration": "2/3", "consumed samples": "8", ...}.
    """
    first, *others = line.split("|")
    found = _ITERATION.search(first)
    if found is None:
        return {}
    pairs = [part.partition(":") for part in others]
    values = {"iteration": "/".join(found.groups())} | {name.strip(): value.strip() for name, _, value in pairs}
    return {name: values[name] for name in PRINTED if name in values}
