"""What packing-harness must know of slime: how it packs, and what its checkouts run on. Facts, without torch."""

from __future__ import annotations

from pathlib import Path

from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle
from harness.upstreams.descriptor import ZIGZAG, DataPath, Limit, LimitedCell, padding_is_fixed
from harness.upstreams.project import ON_TORCH, Project

PAD_MULTIPLIER = 128  # the default of --data-pad-size-multiplier


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """slime.backends.megatron_utils.data.get_batch.

    Every document is padded to 2 * cp tokens if cp > 1. Then each context rank pads its share of the row to a multiple
    of tp * PAD_MULTIPLIER, which is a segment of its own. Only padded offsets are passed.
    """
    return PackingStyle(
        packed=True,
        document_multiple=ZIGZAG.multiple(layout),
        last_token_slots=1,  # a document's last token is in the row, without a label
        row_length=None,
        real_lengths=False,
        packer=Packer(row_multiple=layout.tp * PAD_MULTIPLIER * layout.cp, tails=True, beyond=True),
    )


def _one_row(cell: LimitedCell) -> str | None:
    size = cell.micro_batch_size
    return f"micro_batch_size is {size}, and slime packs a micro-batch into one row" if size > 1 else None


def _per_token(cell: LimitedCell) -> str | None:
    if cell.options.calculate_per_token_loss:
        return None
    return "calculate_per_token_loss is false: slime then takes the mean over samples, which no control computes"


SLIME = DataPath(
    name="slime",
    code="slime Megatron backend",
    functions="slime `get_batch`, `loss_function` with `sft_loss_function`, `get_log_probs_and_entropy`",
    releases="checkouts of slime",
    style=_style,
    alignment=ZIGZAG,
    limits=(
        Limit("slime.alignment", "slime get_batch: from cp only", padding_is_fixed("slime pads documents to 2 * cp")),
        Limit("slime.one-row", "slime get_batch", _one_row),
        Limit("slime.per-token", "packing-slime: a limit of the adapter", _per_token),
    ),
    without=("position_ids", "labels", "loss_mask"),  # its forward_step gives none of these to the model
    returns_log_probs=True,
    loss_on_every_context_rank=True,  # loss_function multiplies by cp, and counts whole documents on each rank
    canaries_without_effect={"padding": "upstream gets documents without padding, and pads with zeros"},
)
PROJECT = Project(
    name="slime",
    title="slime",
    distribution="slime",
    url="https://github.com/THUDM/slime",
    repositories=("slime",),
    modules=("slime",),
    needs=("httpx", "numpy", "pillow"),
    runs_on=({"packages": ["megatron-core==0.19.2", "transformers==5.8.1"]}, ON_TORCH),
    data_path=SLIME.name,
    documents="plain",
    gate=str(Path(__file__).with_name("gate.yaml")),
)
