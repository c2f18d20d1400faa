"""Fingerprints of tensors: the sum of squares and random projections, both additive over shards.

A projection is the dot product with a random tensor of full size; a shard uses its own part of that tensor. So the sum
over shards equals the projection of the whole tensor in any layout, up to rounding; sums are in float64.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import PROJECTIONS
from harness.core.run.tensor_records import Fingerprint
from harness.oracle.drawing import draw
from harness.probe.weights import NamedParameter, parts_of


def gradient_fingerprint(parameter: NamedParameter, gradient: Tensor, seed: int) -> Fingerprint:
    """Return the fingerprint of this rank's shard of a parameter's gradient; `gradient` has the shape of the shard."""
    # Sums of shards must agree with the sum over the whole tensor; in float32 their order alone would show.
    local = gradient.detach().to("cpu", torch.float64)
    return _fingerprint(local, [parameter.shard.take(vector) for vector in _vectors(parameter, seed)])


def part_fingerprints(parameter: NamedParameter, gradient: Tensor, seed: int) -> list[Fingerprint]:
    """Return the fingerprints of the shards into which tensor parallelism would split a whole gradient.

    See weights.parts_of.
    """
    shards = parts_of(parameter)
    vectors = _vectors(parameter, seed) if shards else []
    whole = gradient.detach().to("cpu", torch.float64)
    return [_fingerprint(shard.take(whole), [shard.take(vector) for vector in vectors]) for shard in shards]


def _vectors(parameter: NamedParameter, seed: int) -> list[Tensor]:
    """Return the random tensors of a parameter, each in its full shape."""
    return [draw(f"projection-{number}", parameter.name, parameter.shard.full, seed) for number in range(PROJECTIONS)]


def _fingerprint(local: Tensor, vectors: list[Tensor]) -> Fingerprint:
    projections = [float((local * vector.double()).sum()) for vector in vectors]
    return Fingerprint(norm_sq=float(local.square().sum()), projections=projections)


@lru_cache(maxsize=4)
def _position_vectors(length: int, hidden: int, seed: int) -> Tensor:
    """Return [PROJECTIONS, length, hidden]: the random vectors for each token position in a document."""
    return torch.stack(
        [draw(f"position-{number}", "activation", (length, hidden), seed) for number in range(PROJECTIONS)]
    )


def document_fingerprints(hidden: Tensor, owners: Tensor, *, length: int, seed: int) -> dict[int, Fingerprint]:
    """Return the fingerprint of each document over this rank's real tokens.

    hidden [tokens, hidden]; owners int64 [tokens, 2]: (document or PAD, position); `length`: largest possible
    position + 1.
    """
    real = owners[:, 0] != PAD
    rows = hidden.detach()[real].to("cpu", torch.float64)
    documents, positions = owners[real].unbind(1)
    # Vectors follow the position in the document, not the slot, so that packing and cp splits do not change a sum.
    vectors = _position_vectors(length, rows.shape[-1], seed)[:, positions].double()
    return _by_document(torch.cat([rows.square().sum(-1)[None], (rows[None] * vectors).sum(-1)]), documents)


def token_fingerprints(rows: Tensor, owners: Tensor, *, length: int, seed: int) -> dict[int, Fingerprint]:
    """Return the fingerprint of each document whose projections are those of its tokens' sums.

    Unlike those of `document_fingerprints`, they add up over any split of the features, and do not depend on the order
    of a token's features. rows [tokens, features]: an infinity counts as 0, as masked scores have it; `owners`,
    `length`: as there.
    """
    real = owners[:, 0] != PAD
    features = rows.detach()[real].to("cpu", torch.float64)
    # Masked scores are -inf, and one of them would make every sum of the document infinite.
    features = torch.where(features.isinf(), 0.0, features)
    documents, positions = owners[real].cpu().unbind(1)
    sums = features.sum(-1)[None] * _token_vectors(length, seed)[:, positions]
    return _by_document(torch.cat([features.square().sum(-1)[None], sums]), documents)


@lru_cache(maxsize=4)
def _token_vectors(length: int, seed: int) -> Tensor:
    """Return [PROJECTIONS, length] float64: a random number for each token position in a document."""
    vectors = [draw(f"operation-{number}", "token", (length,), seed) for number in range(PROJECTIONS)]
    return torch.stack(vectors).double()


def _by_document(values: Tensor, documents: Tensor) -> dict[int, Fingerprint]:
    """Return a fingerprint per document from values [1 + PROJECTIONS, tokens]: share of each token in the sum of
    squares and in each projection.
    """
    # index_add_ needs columns that count from 0, and a rank has only some of the documents.
    distinct, column_of = torch.unique(documents, return_inverse=True)
    sums = torch.zeros(len(values), len(distinct), dtype=torch.float64).index_add_(1, column_of, values)
    return {
        int(document): Fingerprint(norm_sq=float(column[0]), projections=[float(value) for value in column[1:]])
        for document, column in zip(distinct, sums.T)
    }


def merge(into: dict[int, Fingerprint], new: dict[int, Any]) -> None:
    """Add fingerprints of further tokens of the documents to `into`."""
    for document, part in new.items():
        if document in into:
            old = into[document]
            part = Fingerprint(
                norm_sq=old.norm_sq + part.norm_sq,
                projections=[a + b for a, b in zip(old.projections, part.projections)],
            )
        into[document] = part
