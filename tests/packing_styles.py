"""Packing styles of data paths by name."""

from __future__ import annotations

from collections.abc import Sequence

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import Row
from harness.core.packing.documents import Document
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.core.packing.packers import PackingStyle
from harness.upstreams.table import DATA_PATHS


def packing_style(
    data_path: str, layout: Layout, seq_length: int, options: PackingOptions = DEFAULT_OPTIONS
) -> PackingStyle:
    """How a data path packs documents into rows."""
    return DATA_PATHS[data_path].style(layout, seq_length, options)


def pack(documents: Sequence[Document], style: PackingStyle, *, seq_length: int, multiple: int) -> list[Row]:
    """The rows that the style's packer makes."""
    return style.packer.rows(documents, style, seq_length=seq_length, multiple=multiple)
