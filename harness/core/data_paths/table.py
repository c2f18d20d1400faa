"""The data paths by their name on the axis `packing`. Their adapters: harness/node/data_paths/table.py."""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.cell.layout import Layout
from harness.core.data_paths.descriptor import DataPath
from harness.core.data_paths.megatron_bridge import IN_BATCH, LONG, OFFLINE
from harness.core.data_paths.megatron_lm import SCHEDULER, SFT
from harness.core.data_paths.own import REFERENCE, RULES, UNPACKED
from harness.core.data_paths.skyrl import SKYRL
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.core.packing.styles import PackingStyle

DATA_PATHS: dict[str, DataPath] = {
    path.name: path for path in (UNPACKED, REFERENCE, SFT, SCHEDULER, SKYRL, OFFLINE, IN_BATCH, LONG, RULES)
}
FORBIDDEN = tuple(case for path in DATA_PATHS.values() for case in path.validates)


def names(paths: Iterable[DataPath]) -> str:
    """The names of data paths as text, e.g. "a, b and c"."""
    *first, last = [path.name for path in paths]
    return f"{', '.join(first)} and {last}" if first else last


def packing_style(
    data_path: str, layout: Layout, seq_length: int, options: PackingOptions = DEFAULT_OPTIONS
) -> PackingStyle:
    """How a data path lays documents into rows; ValueError if the data path is unknown."""
    if data_path not in DATA_PATHS:
        raise ValueError(f"unknown data path {data_path!r}")
    return DATA_PATHS[data_path].style(layout, seq_length, options)
