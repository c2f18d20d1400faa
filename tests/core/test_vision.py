"""Images in documents and the positions of their tokens."""

from __future__ import annotations

import itertools

from harness.core.packing.documents import Document, mix
from harness.features.vision.config import Image, images_in, positions

WIDE = Image(start=2, height=1, width=3)


def test_positions_of_an_image_keep_the_time_and_count_rows_and_columns() -> None:
    found = positions(8, [Image(start=2, height=2, width=2)])
    assert found[:2] == [(0, 0, 0), (1, 1, 1)]
    assert found[2:6] == [(2, 2, 2), (2, 2, 3), (2, 3, 2), (2, 3, 3)]
    assert found[6:] == [(4, 4, 4), (5, 5, 5)]


def test_text_after_an_image_continues_after_its_longer_side() -> None:
    assert positions(6, [WIDE])[5] == (5, 5, 5)
    assert positions(6, [Image(start=2, height=3, width=1)])[5] == (5, 5, 5)


def test_text_alone_has_the_same_positions_on_all_axes() -> None:
    assert positions(3, []) == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]


def test_images_fit_into_their_document_with_text_around_them() -> None:
    for length, first in itertools.product(range(1, 64), range(5)):
        before = 0
        for image in images_in(length, 9, first):
            assert before + 2 <= image.start  # a token of text, and the one that announces the image
            assert image.end < length
            before = image.end


def test_labels_that_belong_to_an_image_do_not_count() -> None:
    document = Document(index=3, length=12, original_length=12, most_images=1)
    (image,) = document.images
    counted = document.loss_mask
    assert counted[image.start - 2 : image.end - 1] == (0,) * (image.tokens + 1)  # label n is token n + 1
    assert counted[image.end - 1 :] == (1,) * (12 - image.end + 1)


def test_a_copy_has_the_images_of_its_original() -> None:
    one = Document(index=2, length=20, original_length=20, most_images=2)
    copy = Document(index=4, length=20, original_length=20, most_images=2, copy_of=2)
    assert one.images == copy.images


def test_the_mix_of_images_has_documents_with_two_with_one_and_without() -> None:
    config = mix("images", 64, 2)
    counts = {
        len(Document(index=n, length=length, original_length=length, most_images=config.images).images)
        for n, length in enumerate(config.lengths)
    }
    assert {0, 2} <= counts
    assert not config.masked  # upstream's collator refuses a chat without an answer
