from __future__ import annotations

import itertools
import random

import pytest

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import PAD, MicroBatch
from harness.core.packing.documents import Document
from harness.core.packing.packers import plan_step
from harness.judge.diagnosis import localise
from harness.judge.diagnosis.localise import (
    CHUNK_EDGE,
    DOCUMENT_BOUNDARY,
    PADDING,
    SEQUENCE_EDGE,
    of_layer,
    of_parameter,
    of_token,
)
from tests.packing_styles import packing_style


def packs(lengths: list[int], layout: Layout, data_path: str = "reference", seq_length: int = 64) -> list[MicroBatch]:
    documents = [Document(index=index, length=size, original_length=size) for index, size in enumerate(lengths)]
    style = packing_style(data_path, layout, seq_length)
    [replica] = plan_step(documents, style, layout, seq_length=seq_length, micro_batch_size=1)
    return replica


def test_the_first_and_last_tokens_of_a_document_name_their_neighbours() -> None:
    [pack] = packs([5, 1, 7], Layout())
    found = of_token(pack, Layout(), 1, 0)
    assert found.boundaries == (DOCUMENT_BOUNDARY,)
    assert [found.keys[key] for key in ("neighbour", "boundaries")] == [0, [DOCUMENT_BOUNDARY]]
    assert found.text == (
        "; location: document boundary, the first token of the document, right after document 0; "
        "document boundary, the last token of the document, right before document 2"
    )
    assert of_token(pack, Layout(), 2, 0).where["neighbour"] == 1
    assert of_token(pack, Layout(), 0, 0).boundaries == ()  # nothing is before the first document
    assert of_token(pack, Layout(), 2, 6).boundaries == ()  # nor after the last
    assert of_token(pack, Layout(), 2, 3) == localise.NOTHING


def test_padding_beside_a_token_is_named() -> None:
    layout = Layout(tp=4, sp=True)  # documents are padded to multiples of 4
    [pack] = packs([5, 3, 8], layout)
    assert PADDING in of_token(pack, layout, 0, 4).boundaries
    assert "3 padding slots right after the token" in of_token(pack, layout, 0, 4).text
    assert "1 padding slot right before the token" in of_token(pack, layout, 2, 0).text
    assert PADDING not in of_token(pack, layout, 2, 7).boundaries


def test_a_chunk_edge_names_the_rank_that_holds_the_token() -> None:
    layout = Layout(cp=2)
    [pack] = packs([16], layout)  # four chunks of four: ranks 0, 1, 1, 0
    assert [of_token(pack, layout, 0, token).where["cp"] for token in (0, 3, 4, 11, 12, 15)] == [0, 0, 1, 1, 0, 0]
    edges = [token for token in range(16) if CHUNK_EDGE in of_token(pack, layout, 0, token).boundaries]
    assert edges == [3, 4, 11, 12]
    assert "chunk 1 of 4, held by cp rank 1, beside cp rank 0" in of_token(pack, layout, 0, 4).text


def test_a_document_of_another_micro_batch_has_no_boundaries() -> None:
    [pack] = packs([5], Layout(cp=2))
    assert of_token(pack, Layout(cp=2), 3, 0) == localise.NOTHING
    assert of_token(pack, Layout(cp=2), 0, 9) == localise.NOTHING


def test_unpacked_rows_have_no_document_boundaries() -> None:
    rows = packs([5, 7], Layout(), "unpacked")
    assert of_token(rows[0], Layout(), 0, 0).boundaries == ()
    assert of_token(rows[0], Layout(), 0, 4).boundaries == (PADDING,)


def layouts() -> list[Layout]:
    return [Layout(tp=tp, cp=cp, sp=tp > 1) for tp, cp in itertools.product((1, 2, 4), (1, 2, 3, 4))]


@pytest.mark.parametrize("layout", layouts(), ids=str)
def test_every_token_is_where_the_plan_puts_it(layout: Layout) -> None:
    """Compared with the plan's own slots: the holder, and each boundary from the neighbouring slots."""
    generator = random.Random(3)
    for _ in range(6):
        lengths = [generator.randint(1, 40) for _ in range(generator.randint(1, 6))]
        for pack in packs(lengths, layout, seq_length=96):
            _hold_against_slots(pack, layout)


def _hold_against_slots(pack: MicroBatch, layout: Layout) -> None:
    owners = pack.slot_owners()
    rank_of = {slot: rank for rank in range(layout.cp) for [row] in [pack.local_slots(layout.cp, rank)] for slot in row}
    for item in pack.placed:
        document = item.document
        for token in range(document.length):
            slot = item.start + token
            found = of_token(pack, layout, document.index, token)
            beside = [other for other in (slot - 1, slot + 1) if 0 <= other < len(owners)]
            segment = range(item.start, item.start + item.padded_length)
            assert (PADDING in found.boundaries) == any(owners[other][0] == PAD for other in beside)
            assert found.where.get("cp", 0) == rank_of[slot]
            cut = any(rank_of[other] != rank_of[slot] for other in beside if other in segment)
            assert (CHUNK_EDGE in found.boundaries) == cut
            first, last = token == 0 and item.start > 0, token == document.length - 1 and item != pack.placed[-1]
            assert (DOCUMENT_BOUNDARY in found.boundaries) == (first or last)


def test_a_share_of_sequence_parallelism_has_edges() -> None:
    layout = Layout(tp=2, sp=True)
    [pack] = packs([8], layout)
    edges = [token for token in range(8) if SEQUENCE_EDGE in of_token(pack, layout, 0, token).boundaries]
    assert edges == [3, 4]


@pytest.mark.parametrize(
    ("layout", "layer", "names"),
    [
        (Layout(pp=2), 0, ("embedding",)),
        (Layout(pp=2), 1, ()),
        (Layout(pp=2), 4, ("stage boundary",)),
        (Layout(pp=2), 5, ()),
        (Layout(pp=2, vpp=3), 2, ("stage boundary",)),
        (Layout(pp=2, vpp=3), 3, ("stage boundary",)),  # back from the last stage to the next chunk of the first
        (Layout(tp=2), 4, ()),
    ],
)
def test_a_layer_after_a_hop_is_at_a_stage_boundary(layout: Layout, layer: int, names: tuple[str, ...]) -> None:
    assert of_layer(layout, 6, layer).boundaries == names


@pytest.mark.parametrize(
    ("name", "shards", "names"),
    [
        ("embedding.word_embeddings.weight", None, ("embedding",)),
        ("output_layer.weight", [0, 1], ("output layer",)),
        ("decoder.layers.3.mlp.linear_fc1.weight", [1], ("stage boundary", "tp shard")),
        ("decoder.layers.1.mlp.linear_fc1.weight", [], ()),
        ("decoder.final_layernorm.weight", None, ()),
        ("mtp.layers.3.eh_proj.weight", None, ()),
    ],
)
def test_boundaries_of_parameters(name: str, shards: list[int] | None, names: tuple[str, ...]) -> None:
    found = of_parameter(Layout(tp=2, pp=2), 6, name, shards)
    assert found.boundaries == names
    assert found.where.get("tp") == (1 if "tp shard" in names else None)
