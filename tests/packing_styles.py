"""Packing styles of data paths by name."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions, PackingStyle
from harness.upstreams.table import DATA_PATHS


def packing_style(
    data_path: str, layout: Layout, seq_length: int, options: PackingOptions = DEFAULT_OPTIONS
) -> PackingStyle:
    """How a data path packs documents into rows."""
    return DATA_PATHS[data_path].style(layout, seq_length, options)
