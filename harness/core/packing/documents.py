"""Documents of a training step: lengths and masks, the same for every layout.

Two modes follow Megatron-LM's mock SFT dataset (dev branch, MockSFTLowLevelDataset): a lognormal distribution or a file
of lengths. For the same seed they give upstream's lengths, before truncation, in upstream's order. The others are
`adversarial`, a mix that exposes most known packing bugs, `uncut`, the same mix short enough not to be truncated, and
`plain`, which also has no masked document.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from harness.core.packing.lognormal import lognormal
from harness.core.setting import Limits, setting

DocumentsMode = Literal["adversarial", "uncut", "plain", "distribution", "file"]
MIXES: tuple[DocumentsMode, ...] = ("adversarial", "uncut", "plain")  # modes that are the same in every step
MOST_LENGTH = 2**31 - 1  # tokens of a document before it is truncated
MOST_LENGTHS = 10_000  # of a list or file: a resolved matrix holds them all
# Mode -> the other keys that the section may have.
KEYS_OF_MODE: Mapping[DocumentsMode, tuple[str, ...]] = {
    **dict.fromkeys(MIXES, ()),
    "distribution": ("type", "min_seq_len", "max_seq_len", "mean_seq_len", "lognormal_sigma"),
    "file": ("path", "lengths"),
}
MOCK_SIZE = 1_000_000  # lengths that upstream's mock dataset draws before it repeats them


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of one step."""

    index: int  # position in the step; identifies the document in records and reports
    length: int  # number of labels, after truncation; there is one token more, and both fit in seq_length
    original_length: int
    masked: bool = False  # every label is masked out of the loss
    copy_of: int | None = None  # index of the document whose content this one repeats


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig:
    """How document lengths are made. `lengths` is filled in for every mode except `distribution`."""

    mode: DocumentsMode = "adversarial"
    type: Literal["lognormal"] = setting("lognormal", doc="Family of the distribution.")
    min_seq_len: int = setting(1, doc="Shortest document, tokens.", ge=1, le=MOST_LENGTH)
    max_seq_len: int = setting(64, doc="Longest document, tokens.", ge=1, le=MOST_LENGTH, required=True)
    mean_seq_len: float = setting(24.0, doc="Mean length, tokens.", gt=0, le=MOST_LENGTH, required=True)
    lognormal_sigma: float = setting(1.1, doc="Sigma of log(length).", ge=0, le=100)
    path: str | None = setting(
        None, doc=f"CSV file of one column of at most {MOST_LENGTHS} lengths, relative to the matrix file."
    )
    lengths: tuple[Annotated[int, Limits(ge=1, le=MOST_LENGTH)], ...] = setting(
        (), doc="The lengths themselves.", min_length=1, max_length=MOST_LENGTHS, optional=True
    )
    masked: tuple[int, ...] = ()  # indices into `lengths` that are fully masked
    repeat: tuple[int, int] | None = None  # (original, copy), indices into `lengths`

    def section(self) -> dict[str, Any]:
        """The section of a matrix file that gives this configuration; lengths from a file are listed."""
        written = {name: getattr(self, name) for name in KEYS_OF_MODE[self.mode]}
        return {"mode": self.mode} | {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in written.items()
            if value is not None
        }


def mix(mode: DocumentsMode, seq_length: int, cp: int) -> DocumentsConfig:
    """The built-in mix for a mode in MIXES, for a matrix whose largest context-parallel size is `cp`."""
    whole = adversarial_mix(seq_length, cp)
    if mode == "adversarial":
        return whole
    lengths = tuple(min(length, seq_length - 1) for length in whole.lengths)
    return replace(whole, mode=mode, lengths=lengths, masked=() if mode == "plain" else whole.masked)


def adversarial_mix(seq_length: int, cp: int) -> DocumentsConfig:
    """The built-in mix `adversarial` for a matrix whose largest context-parallel size is `cp`.

    Lengths 1, 2*cp - 1 (shorter than the alignment), an odd one above 8*cp, 2*cp, a copy of the odd one, a long one,
    a fully masked one, and one that overflows seq_length and is truncated. In this order they fill a first row with
    many short documents and a second with few long ones, so micro-batches differ in document count and longest length.
    """
    odd = min(8 * cp + 3, max(seq_length // 3, 1)) | 1
    long = max(seq_length - seq_length // 4 - 1, 1)
    lengths = (1, max(2 * cp - 1, 1), odd, 2 * cp, odd, long, max(seq_length // 8, 2) + 1, seq_length + 9)
    return DocumentsConfig(mode="adversarial", max_seq_len=seq_length, lengths=lengths, masked=(6,), repeat=(2, 4))


def documents_of_step(config: DocumentsConfig, *, seed: int, step: int, count: int, seq_length: int) -> list[Document]:
    """The `count` documents of one step; pure, so every rank of every layout gets the same list."""
    if config.mode == "distribution":
        return _lognormal(config, seed=seed, step=step, count=count, seq_length=seq_length)
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
            )
        )
    return documents


def _lognormal(config: DocumentsConfig, *, seed: int, step: int, count: int, seq_length: int) -> list[Document]:
    """Documents with mu = ln(mean) - sigma^2 / 2, lengths clamped to [min, max] and truncated to whole tokens.

    Steps continue one sequence, that of MockSFTLowLevelDataset.generate_lognormal_samples, whose default seed is 0.
    """
    sigma = config.lognormal_sigma
    mu = math.log(config.mean_seq_len) - sigma**2 / 2
    documents = []
    for index in range(count):
        drawn = lognormal(seed, (step * count + index) % MOCK_SIZE, mu=mu, sigma=sigma)
        length = int(min(max(drawn, config.min_seq_len), config.max_seq_len))
        documents.append(Document(index=index, length=min(length, seq_length - 1), original_length=length))
    return documents
