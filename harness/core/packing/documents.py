"""Documents of a training step: lengths and masks, the same for every layout.

Two modes follow Megatron-LM's mock SFT dataset (dev branch, MockSFTLowLevelDataset): a lognormal distribution or a file
of lengths. For the same seed they give upstream's lengths, before truncation, in upstream's order. The others are
`adversarial`, a mix that exposes most known packing bugs, `uncut`, the same mix short enough not to be truncated, and
`plain`, which also has no masked document; `multi_turn`, the lengths of `uncut` as conversations of several prompts
and answers, of which only the answers count, and `delimited`, the same with a token at the end of each message;
`images`, the documents of `plain` with images, whose tokens do not count as labels.

Lognormal numbers are drawn as numpy's legacy generator does, without numpy: numpy.random.seed, numpy.random.lognormal.
numpy and Python use the same Mersenne twister, but derive its initial state from the seed differently (Matsumoto and
Nishimura, mt19937ar.c: init_genrand). Marsaglia's polar method gives normal numbers in pairs, the second one first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from harness.core.setting import Limits, keys_of, setting
from harness.features.vision.config import Image, images_in

DocumentsMode = Literal["adversarial", "uncut", "plain", "multi_turn", "delimited", "images", "distribution", "file"]
# Modes that are the same in every step.
MIXES: tuple[DocumentsMode, ...] = ("adversarial", "uncut", "plain", "multi_turn", "delimited", "images")
MAX_LENGTH = 2**31 - 1  # tokens of a document before it is truncated
MAX_LENGTHS = 10_000  # of a list or file: a resolved matrix holds them all
_CONTENT = ("turns", "delimited", "images")
# Mode -> the other keys that the section may have.
KEYS_OF_MODE: Mapping[DocumentsMode, tuple[str, ...]] = {
    **dict.fromkeys(MIXES, ()),
    "distribution": ("type", "min_seq_len", "max_seq_len", "mean_seq_len", "lognormal_sigma", *_CONTENT, "mock"),
    "file": ("path", "lengths", *_CONTENT),
}
MODES = tuple(KEYS_OF_MODE)
MOCK_SEED = 0  # of upstream's mock dataset
MOCK_SIZE = 1_000_000  # lengths that upstream's mock dataset draws before it repeats them
TURNS = 3  # of the documents of `multi_turn` and `delimited` that are long enough
IMAGES = 2  # of the documents of `images` that are long enough


@dataclass(frozen=True, kw_only=True)
class Message:
    """A part of a document: the tokens [start, end), before truncation."""

    answer: bool  # its tokens count in the loss, as labels; those of a prompt do not
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of one step."""

    index: int  # position in the step; identifies the document in records and reports
    length: int  # number of labels, after truncation; there is one token more, and both fit in seq_length
    original_length: int
    masked: bool = False  # every label is masked out of the loss
    copy_of: int | None = None  # index of the document whose content this one repeats
    turns: int = 1  # at most: a prompt and an answer each, of at least one token
    mock: bool = False  # see DocumentsConfig
    delimited: bool = False  # every message ends with the token that documents end with
    most_images: int = 0

    @cached_property
    def images(self) -> list[Image]:
        """Its images, none of which is cut by truncation."""
        return images_in(self.length, self.most_images, self.index if self.copy_of is None else self.copy_of)

    @property
    def messages(self) -> list[Message]:
        """Its prompts and answers in turn; together all original_length + 1 tokens.

        Turns are equally long, but for the last, which takes the rest, and a third of each is its prompt. The prompt of
        a single turn is one token, which no label predicts; a masked document is all prompt.
        """
        tokens = self.original_length + 1
        if self.masked:
            return [Message(answer=False, start=0, end=tokens)]
        turns = min(self.turns, tokens // 2)
        width = tokens // turns
        prompt = max(width // 3, 1) if turns > 1 else 1
        starts = [turn * width for turn in range(turns)]
        ends = [*starts[1:], tokens]
        return [
            message
            for start, end in zip(starts, ends)
            for message in (
                Message(answer=False, start=start, end=start + prompt),
                Message(answer=True, start=start + prompt, end=end),
            )
        ]

    @cached_property
    def loss_mask(self) -> tuple[int, ...]:
        """Of every label 1 if it counts in the loss, else 0. Label n is token n + 1."""
        counted = [int(message.answer) for message in self.messages for _ in range(message.start, message.end)]
        for image in self.images:
            counted[image.start - 1 : image.end] = [0] * (image.tokens + 1)
        return tuple(counted[1 : self.length + 1])

    @cached_property
    def loss_tokens(self) -> int:
        """The number of labels that count in the loss."""
        return sum(self.loss_mask)


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig:
    """How document lengths are made. `lengths` is filled in for every mode except `distribution`."""

    mode: DocumentsMode = "adversarial"
    type: Literal["lognormal"] = setting("lognormal", doc="Family of the distribution.")
    min_seq_len: int = setting(1, doc="Shortest document, tokens.", ge=1, le=MAX_LENGTH)
    max_seq_len: int = setting(64, doc="Longest document, tokens.", ge=1, le=MAX_LENGTH, required=True)
    mean_seq_len: float = setting(24.0, doc="Mean length, tokens.", gt=0, le=MAX_LENGTH, required=True)
    lognormal_sigma: float = setting(1.1, doc="Sigma of log(length).", ge=0, le=100)
    path: str | None = setting(
        None, doc=f"CSV file of one column of at most {MAX_LENGTHS} lengths, relative to the matrix file."
    )
    lengths: tuple[Annotated[int, Limits(ge=1, le=MAX_LENGTH)], ...] = setting(
        (), doc="The lengths themselves.", min_length=1, max_length=MAX_LENGTHS, optional=True
    )
    turns: int = setting(
        1,
        doc="Prompts and answers of each document, of which only the answers count in the loss; short documents have "
        "fewer.",
        ge=1,
        le=1_000,
        later=True,
    )
    delimited: bool = setting(
        False, doc="Whether prompts and answers end with the token that documents end with.", later=True
    )
    images: int = setting(
        0,
        doc="Images in each document that is long enough; their tokens do not count as labels. Needs `model.vision`.",
        ge=0,
        le=1_000,
        later=True,
    )
    mock: bool = setting(
        False,
        doc="Whether they are those of Megatron-LM's [mock data sets](trainers.md#data), with the seed of these: token "
        "n of a document is n, and the last of `length` tokens ends it.",
        later=True,
    )
    name: str = setting("", doc="Name under `lists` of the matrix file; part of a cell's id.", later=True)
    masked: tuple[int, ...] = ()  # indices into `lengths` that are fully masked
    repeat: tuple[int, int] | None = None  # (original, copy), indices into `lengths`

    @property
    def label(self) -> str:
        """The value of the axis `documents`."""
        return self.name or self.mode

    def section(self) -> dict[str, Any]:
        """Return the section of a matrix file that gives this configuration; lengths from a file are listed."""
        keys = keys_of(type(self))
        written = [(keys[name], getattr(self, name)) for name in KEYS_OF_MODE[self.mode]]
        return {"mode": self.mode} | {
            key.name: list(value) if isinstance(value, tuple) else value
            for key, value in written
            if value is not None and not (key.setting.later and value == key.default)
        }


def mix(mode: DocumentsMode, seq_length: int, cp: int) -> DocumentsConfig:
    """Return the built-in mix for a mode in MIXES, for a matrix whose largest context-parallel size is `cp`."""
    whole = adversarial_mix(seq_length, cp)
    if mode == "adversarial":
        return whole
    short = tuple(min(length, seq_length - 1) for length in whole.lengths)
    turns = TURNS if mode in ("multi_turn", "delimited") else 1
    masked = () if mode in ("plain", "images") else whole.masked
    images = IMAGES if mode == "images" else 0
    made = replace(whole, mode=mode, lengths=short, masked=masked, turns=turns, delimited=mode == "delimited")
    return replace(made, images=images)


def adversarial_mix(seq_length: int, cp: int) -> DocumentsConfig:
    """Return the built-in mix `adversarial` for a matrix whose largest context-parallel size is `cp`.

    Lengths 1, 2*cp - 1 (shorter than the alignment), an odd one above 8*cp, 2*cp, a copy of the odd one, a long one,
    a fully masked one, and one that overflows seq_length and is truncated. In this order they fill a first row with
    many short documents and a second with few long ones, so micro-batches differ in document count and longest length.
    """
    odd = min(8 * cp + 3, max(seq_length // 3, 1)) | 1
    long = max(seq_length - seq_length // 4 - 1, 1)
    lengths = (1, max(2 * cp - 1, 1), odd, 2 * cp, odd, long, max(seq_length // 8, 2) + 1, seq_length + 9)
    return DocumentsConfig(mode="adversarial", max_seq_len=seq_length, lengths=lengths, masked=(6,), repeat=(2, 4))


def documents_of_step(
    config: DocumentsConfig,
    *,
    seed: int,
    step: int,
    count: int,
    seq_length: int,
    evaluation: int | None = None,
    tests: int = 0,
) -> list[Document]:
    """Return the `count` documents of one step; pure, so every rank of every layout gets the same list.

    `evaluation`: its number, if it is one; number `tests` and later ones take documents of upstream's set of tests.
    """
    if config.mode == "distribution":
        first = step * count
        if config.mock and evaluation is not None:  # training, validation and tests have a third each: --split 1,1,1
            part, number = (2, evaluation - tests) if evaluation >= tests else (1, evaluation)
            first = round(part * MOCK_SIZE / 3) + number * count
        return _lognormal(config, seed=seed, first=first, count=count, seq_length=seq_length)
    documents = []
    size = len(config.lengths)
    for index in range(count):
        source = (index + (step * count if config.mode == "file" else 0)) % size
        cycle = index - source
        copied = config.repeat is not None and source == config.repeat[1]
        documents.append(
            Document(
                index=index,
                length=min(config.lengths[source], seq_length - 1),
                original_length=config.lengths[source],
                masked=source in config.masked,
                copy_of=cycle + config.repeat[0] if copied and config.repeat else None,
                turns=config.turns,
                delimited=config.delimited,
                most_images=config.images,
            )
        )
    return documents


def _lognormal(config: DocumentsConfig, *, seed: int, first: int, count: int, seq_length: int) -> list[Document]:
    """Return documents with mu = ln(mean) - sigma^2 / 2, lengths clamped to [min, max] and truncated to whole tokens.

    Steps continue one sequence, that of MockSFTLowLevelDataset.generate_lognormal_samples, whose seed is 0.
    """
    seed = MOCK_SEED if config.mock else seed
    sigma = config.lognormal_sigma
    mu = math.log(config.mean_seq_len) - sigma**2 / 2
    documents = []
    for index in range(count):
        drawn = lognormal(seed, (first + index) % MOCK_SIZE, mu=mu, sigma=sigma)
        length = int(min(max(drawn, config.min_seq_len), config.max_seq_len)) - config.mock
        documents.append(
            Document(
                index=index,
                length=min(length, seq_length - 1),
                original_length=length,
                turns=config.turns,
                delimited=config.delimited,
                most_images=config.images,
                mock=config.mock,
            )
        )
    return documents


_WORDS = 624  # 32-bit words of the twister's state
_LARGEST = 700.0  # its exponential is still finite, and far above any length


def lognormal(seed: int, index: int, *, mu: float, sigma: float) -> float:
    """Element `index` of numpy.random.lognormal(mu, sigma, n) after numpy.random.seed(seed).

    numpy rejects seeds above 2^32 - 1; here only their low 32 bits count.
    """
    return math.exp(min(mu + sigma * _normals(seed % 2**32).number(index), _LARGEST))


class _Normals:
    """The standard normal numbers of one seed; numbers already drawn are kept."""

    def __init__(self, seed: int) -> None:
        self._twister = random.Random()
        self._twister.setstate((3, (*_first_words(seed), _WORDS), None))
        self._drawn: list[float] = []

    def number(self, index: int) -> float:
        while len(self._drawn) <= index:
            self._drawn += self._pair()
        return self._drawn[index]

    def _pair(self) -> tuple[float, float]:
        while True:
            x, y = 2.0 * self._twister.random() - 1.0, 2.0 * self._twister.random() - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                factor = math.sqrt(-2.0 * math.log(square) / square)
                return factor * y, factor * x


@lru_cache(maxsize=8)
def _normals(seed: int) -> _Normals:
    return _Normals(seed)


def _first_words(seed: int) -> list[int]:
    words = [seed]
    for index in range(1, _WORDS):
        before = words[-1]
        words.append((1812433253 * (before ^ (before >> 30)) + index) % 2**32)
    return words
