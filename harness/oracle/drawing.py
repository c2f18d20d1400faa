"""What both sides draw by one rule, from a name and the seed: weights, tokens and pixels of documents, random vectors.

Layouts do not matter: a tensor is drawn in full size, and whoever holds a part of it takes that part.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.features.adapters.config import is_adapter
from harness.features.vision.config import CHANNELS, IMAGE, PATCH, TEMPORAL_PATCH, VIDEO, VISION_START

# Reserved token ids, which do not occur inside documents; each document ends with END. Upstream masks labels that equal
# padding. A canary leg replaces PADDING with OTHER_PADDING. Where the token after an END is a label, documents begin
# with START, so that it is the same whichever document follows.
PADDING, END, OTHER_PADDING, START = 0, 1, 2, 3
INITIAL_STD = 0.02  # GPT-2's initial standard deviation, Megatron's default init_method_std
ADAPTER_STD = 0.05  # of both factors of an adapter, whose output is then about half as large as its layer's
# Softplus of it is a recurrent layer's time step, and a state decays by exp(-e^A_log * step) per token: to 0.88 here. A
# state that leaks into the next document shows there for tens of tokens.
_TIME_STEP, _LONG_MEMORY = ".dt_bias", -3.0


def _generator(text: str) -> torch.Generator:
    digest = hashlib.sha256(text.encode()).digest()
    # Seven bytes, since manual_seed takes a signed 64-bit number.
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def draw(kind: str, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return a standard normal fp32 tensor on the CPU that depends only on (kind, name, shape, seed)."""
    # The shape is part of the key, so that a parameter that changed its shape cannot agree by sharing its first
    # numbers.
    return torch.randn(shape, generator=_generator(f"{kind}/{name}/{tuple(shape)}/{seed}"))


def initial_weight(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial fp32 value of the weight with this global name, in full size.

    Weights of one dimension become 1 + small noise, so that the gradients of norms differ; biases 0 + noise.
    """
    weight = draw("weight", name, shape, seed) * (ADAPTER_STD if is_adapter(name) else INITIAL_STD)
    if len(shape) == 1 and not name.endswith(".bias"):
        weight += _LONG_MEMORY if name.endswith(_TIME_STEP) else 1.0
    return weight


def content_tokens(config: CellConfig, step: int, document: int, length: int, *, changed: bool = False) -> Tensor:
    """Return [length] int64 token ids of a document, the same for every layout and data path.

    The last one is END; where the label of END counts, the first of the next document follows it.

    `changed`: different tokens than in training.
    """
    kind = "changed" if changed else "content"
    reserved = OTHER_PADDING if config.model.vision is None else VIDEO
    generator = _generator(f"{kind}/{config.train.seed}/{step}/{document}")
    ids = torch.randint(reserved + 1, config.model.vocab, (length,), generator=generator)
    # Upstream's data sets end documents with their end token; some of them find boundaries by it.
    ids[-1] = END
    if not config.train.eod_mask_loss:
        ids[0], ids[-2], ids[-1] = START, END, START
    return ids


def document_tokens(config: CellConfig, step: int, document: Document, *, changed: bool = False) -> Tensor:
    """Return [original_length + 1] int64 token ids, before truncation. A copy has the content of its original."""
    if document.mock:
        # The tokens of Megatron-LM's own mock data set, which the harness cannot choose.
        return torch.tensor([*range(1, document.original_length + 1), END])
    index = document.index if document.copy_of is None else document.copy_of
    ids = content_tokens(config, step, index, document.original_length + 1, changed=changed)
    if document.delimited:
        ids[[message.end - 1 for message in document.messages]] = END
    for image in document.images:
        ids[image.start - 1], ids[image.start : image.end] = VISION_START, IMAGE
    return ids


def document_pixels(config: CellConfig, step: int, document: Document, *, changed: bool = False) -> list[Tensor]:
    """Return the fp32 patches of each of a document's images, [patches, values]. A copy has the images of its
    original.
    """
    index = document.index if document.copy_of is None else document.copy_of
    kind, values = "changed" if changed else "pixels", CHANNELS * TEMPORAL_PATCH * PATCH**2
    return [
        draw(kind, f"{step}/{index}/{number}", (math.prod(image.grid), values), config.train.seed)
        for number, image in enumerate(document.images)
    ]
