"""The slots of micro-batches, as the packing plan lays them out."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig
from harness.features.experts.config import MoeConfig
from harness.features.vision.config import IMAGE, MERGE, VisionConfig, positions
from harness.oracle.drawing import END, PADDING, document_pixels, document_tokens
from harness.oracle.rows import Stream, stream_of


def first(data_path: str, layout: Layout | None = None, **more) -> tuple[CellConfig, Stream]:
    """The first micro-batch of documents of 5 and 3 labels, of which the second is masked."""
    documents = DocumentsConfig(mode="file", lengths=(5, 3), masked=(1,))
    plain = CellConfig(layout=layout or Layout(), data_path=data_path, documents=documents, **more)
    config = replace(plain, train=replace(plain.train, global_batch=2, seq_length=16))
    return config, stream_of(config, 0, config.micro_batches(0)[0][0])


def test_documents_are_side_by_side_with_positions_labels_and_masks() -> None:
    _, stream = first("reference")
    assert stream.documents.tolist() == [0] * 5 + [1] * 3
    assert stream.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert stream.segments == (5, 3)
    assert stream.labels[:4].tolist() == stream.tokens[1:5].tolist()
    assert stream.labels[[4, 7]].tolist() == [END, END]
    assert stream.mask.tolist() == [1] * 5 + [0] * 3
    assert stream.indices == [0, 1]


def test_rows_that_are_not_packed_attend_to_their_padding() -> None:
    """Positions go on, and padding slots see the document before them."""
    _, stream = first("unpacked")
    assert stream.segments == stream.rows == (16,)
    assert stream.positions.tolist() == list(range(16))
    assert stream.documents.tolist() == [0] * 5 + [-1] * 11


def test_tokens_and_pixels_are_those_of_their_step() -> None:
    config = seeing("unpacked", 1, (14,))
    for step in (0, 1):
        plan = config.micro_batches(step)[0][0]
        stream, document = stream_of(config, step, plan), plan.placed[0].document
        assert torch.equal(stream.tokens[:13], document_tokens(config, step, document)[:13])
        assert stream.images is not None
        assert torch.equal(stream.images.pixels, torch.cat(document_pixels(config, step, document)))


def test_padding_after_documents_with_images_is_text() -> None:
    config = seeing("bridge_offline", 1, (6,))
    stream = stream_of(config, 0, config.micro_batches(0)[0][0])
    tail = stream.segments[-1]
    assert stream.axes is not None and (stream.documents[-tail:] < 0).all()
    assert stream.axes[-tail:].tolist() == [[at] * 3 for at in range(tail)]


def seeing(data_path: str, documents: int, lengths: tuple[int, ...]) -> CellConfig:
    """With two images in documents that are long enough; as many documents in a row."""
    plain, _ = first(data_path)
    model = replace(plain.model, vision=VisionConfig())
    given = replace(plain.documents, lengths=lengths, masked=(), images=2)
    return replace(plain, micro_batch_size=documents, model=model, documents=given)


def test_images_are_in_the_order_of_their_tokens_and_positions_start_again_at_each_document() -> None:
    _, text = first("unpacked")
    assert (text.axes, text.images) == (None, None)
    config = seeing("bridge_in_batch", 2, (14, 12))
    plan = config.micro_batches(0)[0][0]
    stream = stream_of(config, 0, plan)
    images = [image for item in plan.placed for image in item.document.images]
    assert stream.images is not None and stream.axes is not None
    assert len(plan.placed) == 2 and len(images) > 2
    assert stream.images.grids == tuple(image.grid for image in images)
    assert len(stream.images.pixels) == MERGE**2 * int((stream.tokens == IMAGE).sum())
    for item in plan.placed:
        right = positions(item.document.length, item.document.images)
        assert stream.axes[item.start :][: len(right)].tolist() == [list(place) for place in right]
    assert torch.equal(stream.places.positions, stream.axes)
    assert torch.equal(text.places.positions, text.positions)


def test_padding_holds_what_the_data_path_pads_with() -> None:
    for path, trainer, token in (
        ("unpacked", "none", PADDING),
        ("bridge_offline", "none", END),
        ("bridge_long", "none", PADDING),
        ("bridge_long", "bridge", END),
    ):
        plain, _ = first("unpacked")
        config = replace(plain, data_path=path, **({} if trainer == "none" else {"trainer": trainer}))
        plan = config.micro_batches(0)[0][0]
        stream = stream_of(config, 0, plan)
        padding = stream.tokens[stream.documents < 0]
        given = padding[plan.style.last_token_slots :]
        assert set(given.tolist()) <= {token}
        assert path == "bridge_offline" or len(given) > 0


def test_routers_count_padding_unless_it_is_masked() -> None:
    _, stream = first("unpacked")
    assert stream.counted.all()
    plain, _ = first("unpacked")
    masked = replace(plain, model=replace(plain.model, moe=MoeConfig(padding_mask=True)))
    counted = stream_of(masked, 0, masked.micro_batches(0)[0][0]).counted
    assert counted.tolist() == [True] * 5 + [False] * 11


def test_without_sequence_parallelism_tensor_parallel_ranks_route_the_same_slots() -> None:
    for layout in (Layout(), Layout(tp=2)):
        _, stream = first("unpacked", layout)
        assert [share.tolist() for share in stream.shares] == [list(range(16))]


def test_ranks_route_their_slots_in_the_order_of_their_hidden_states() -> None:
    _, stream = first("unpacked", Layout(tp=2, cp=2, sp=True))
    assert [share.tolist() for share in stream.shares] == [[0, 1, 2, 3], [12, 13, 14, 15], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert torch.cat(stream.shares).sort().values.tolist() == list(range(16))
