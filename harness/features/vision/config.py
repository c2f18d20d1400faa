"""Vision: the tower of a model, the images in documents, and the positions of their tokens along three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from harness.core.setting import Limits, setting

# Token ids, after those that every document reserves (oracle/drawing.py): what precedes an image, its tokens, and
# those of a video, which no document has.
VISION_START, IMAGE, VIDEO = 3, 4, 5
TOWER = "vision_model."  # prefix of the names of the tower's weights
PATCH, TEMPORAL_PATCH, CHANNELS = 2, 1, 3  # pixels of a patch's side, frames of a patch, colours
POSITIONS = 16  # of the tower's own position embedding: a square of 4 x 4
MERGE = 2  # patches of a side that become one image token
AXES = ("time", "height", "width")
# Height and width of images in tokens, in turn. Of the sides some are equal and others not, so that axes differ.
_SIZES = ((2, 3), (1, 2), (3, 2), (1, 1), (2, 2))


def _count(default: int, doc: str, *, le: int, ge: int = 1, **facts: Any) -> Any:
    return setting(default, doc=doc, ge=ge, le=le, **facts)


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """A vision tower before the model, whose language model has positions along three axes (MRoPE)."""

    layers: int = _count(2, "Layers of the vision tower.", le=1_024)
    hidden: int = _count(32, "Hidden size of the vision tower.", le=2**17)
    heads: int = _count(4, "Attention heads of the vision tower; must divide its hidden size.", le=4_096)
    ffn: int = _count(64, "Hidden size of its feed-forward blocks.", le=2**20)
    deepstack: int = _count(
        1, "First layers of the language model to whose output features of the tower are added.", le=1_024, ge=0
    )
    sections: tuple[Annotated[int, Limits(ge=1, le=2**14)], ...] = setting(
        (2, 1, 1),
        doc="Rotary frequencies that follow time, height and width; together half of the head size.",
        min_length=3,
        max_length=3,
        upstream="mrope_section",
    )

    def __str__(self) -> str:
        sections = "" if self.sections == (2, 1, 1) else f"-mrope{'.'.join(map(str, self.sections))}"
        return f"vision{self.layers}-deepstack{self.deepstack}{sections}"


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image in a document, whose first token is at `start`; sides in tokens. The token before it is VISION_START."""

    start: int
    height: int
    width: int

    @property
    def tokens(self) -> int:
        return self.height * self.width

    @property
    def end(self) -> int:
        return self.start + self.tokens

    @property
    def grid(self) -> tuple[int, int, int]:
        """Patches along time, height and width: a row of upstream's image_grid_thw."""
        return 1, MERGE * self.height, MERGE * self.width


def images_in(length: int, most: int, first: int) -> list[Image]:
    """Return the images of a document of `length` labels: at most `most`, as far as they fit.

    Before each, and after the last, there is at least one token of text. `first`: the number of the first size.
    """
    found: list[Image] = []
    start = 2  # after a token of text and VISION_START
    for number in range(most):
        height, width = _SIZES[(first + number) % len(_SIZES)]
        image = Image(start=start, height=height, width=width)
        if image.end < length:
            found.append(image)
            # At least a token of text and VISION_START; sometimes one more, so that gaps differ.
            start = image.end + 2 + number % 2
    return found


def positions(length: int, images: Sequence[Image]) -> list[tuple[int, int, int]]:
    """Positions of a document's tokens along AXES, as Qwen-VL defines them.

    Text moves all three axes by one. An image starts at the next position, on which its time axis stays; the other two
    count its rows and columns. What follows it continues after the largest of them.
    """
    found: list[tuple[int, int, int]] = []
    begins = {image.start: image for image in images}
    following = 0
    while len(found) < length:
        image = begins.get(len(found))
        if image is None:
            found.append((following, following, following))
            following += 1
            continue
        found += [
            (following, following + row, following + column)
            for row in range(image.height)
            for column in range(image.width)
        ]
        following += max(image.height, image.width)
    # An image may reach beyond the labels: the last token of a document has none.
    return found[:length]
