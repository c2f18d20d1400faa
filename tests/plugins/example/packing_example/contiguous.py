"""The descriptor of a data path whose context ranks hold contiguous parts of a row, as slime's --allgather-cp."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import contiguous
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle
from harness.upstreams.descriptor import Alignment, DataPath

ALIGNMENT = Alignment(lambda layout: layout.tp if layout.sp else 1, lambda layout: "tp")


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """Documents may be cut anywhere; the row ends at a multiple of what the ranks share."""
    multiple = layout.cp * ALIGNMENT.multiple(layout)
    return PackingStyle(
        packed=True,
        document_multiple=1,
        row_length=None,
        real_lengths=True,
        split=contiguous,
        packer=Packer(row_multiple=multiple, tails=True, beyond=True),
    )


CONTIGUOUS = DataPath(
    name="contiguous",
    code="packing-example",
    functions="none: the harness's own packer, with another split over context ranks",
    releases="any megatron-core from 0.14",
    style=_style,
    alignment=ALIGNMENT,
    counts_work=True,
)
