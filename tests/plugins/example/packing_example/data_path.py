"""The descriptor of the data path, for the launcher and for ranks. Imports nothing but harness.core."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import PackingStyle
from harness.upstreams.descriptor import LAYOUT, DataPath


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    multiple = LAYOUT.multiple(layout)
    return PackingStyle(packed=True, document_multiple=multiple, row_length=None, real_lengths=True)


EXAMPLE = DataPath(
    name="example",
    code="packing-example",
    functions="none: the harness's own packer, under another name",
    releases="any megatron-core from 0.14",
    style=_style,
    alignment=LAYOUT,
    counts_work=True,
)
