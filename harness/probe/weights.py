"""The parameters of a rank by their global names, and the parts of full tensors that it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core.models.common.language_module.language_module import LanguageModule
from torch import Tensor

from harness.features.hybrid.node_model import is_recurrent
from harness.features.hybrid.node_model import sections as sections_of
from harness.features.vision.config import TOWER
from harness.features.vision.node_model import language_of
from harness.oracle.drawing import initial_weight

_LAYER = re.compile(r"\bdecoder\.layers\.(\d+)\.")
_RECURRENT = re.compile(r"\blayers\.\d+\.(self_attention|mixer)\.")
_EXPERT = re.compile(r"\bexperts\.local_experts\.(\d+)\.")
# A grouped layer has the weights of all experts of the rank.
_GROUPED = re.compile(r"\bexperts\.(linear_fc[12]\.(?:weight|bias))(\d+)$")
# Layers of Megatron -> the dimension in which ranks split their weights; upstream's own mark of it is under test.
_SPLIT = {"VocabParallelEmbedding": 0, "ColumnParallelLinear": 0, "RowParallelLinear": 1}
# Gate and up projection are stacked; the first factor of their adapter, which both share, is not.
_STACKED = re.compile(r"\blinear_fc1\.(?!adapter\.(linear_in|adapter_))")
_PER_HEAD, _MAGNITUDE = ".softmax_offset", ".weight_magnitude"
# Megatron-Bridge puts an adapted layer into a wrapper. Without that in its name, a weight has the values that it has in
# the model without adapters.
_WRAPPED = ".to_wrap."
_CONVOLUTION = re.compile(r"(\.mixer\.conv1d)\.")  # of Mamba: a module until megatron-core 0.18, then two parameters
_OUTPUT = "output_layer.weight"
TIED_NAME = "embedding.word_embeddings.weight"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The part of a full tensor that a rank holds.

    `pieces` > 1: the full tensor is `pieces` tensors stacked along `dim`, each split over the ranks separately (gate
    and up projections of SwiGLU). `sections`: their full sizes, where these differ.
    """

    full: tuple[int, ...]
    dim: int | None  # None: every rank holds the whole tensor
    pieces: int
    index: int
    count: int
    sections: tuple[int, ...] = ()

    def take(self, full: Tensor) -> Tensor:
        """Return the rank's part of a tensor of shape `full`."""
        if self.dim is None:
            return full
        whole = torch.split(full, list(self.sections), self.dim) if self.sections else full.chunk(self.pieces, self.dim)
        # Megatron splits gate and up projections separately, so that each tp rank can multiply its halves; a plain
        # chunk would give one rank the gate only.
        parts = [piece.chunk(self.count, self.dim)[self.index] for piece in whole]
        return torch.cat(parts, self.dim)


@dataclass(frozen=True, kw_only=True)
class NamedParameter:
    """A parameter of a rank's chunk with its name in the whole model, and the shard of it that the rank has."""

    name: str  # layers and experts are numbered from 0 over the whole model, as in a checkpoint of one rank
    parameter: torch.nn.Parameter
    shard: Shard
    split: int | None = None  # the dimension that tensor parallelism splits, whatever its size here
    sections: tuple[int, ...] = ()  # as in Shard, whatever the size of tensor parallelism here
    pieces: int = 1  # likewise
    expert_shard: int | None = None  # expert tensor parallel rank, if experts are not split as other weights are


def named_parameters(
    chunk: Any, *, tp_rank: int, tp_size: int, ep_rank: int = 0, expert_split: tuple[int, int] | None = None
) -> Iterator[NamedParameter]:
    """Yield the parameters of one model chunk (the module inside DDP) with their global names and shards.

    `ep_rank`: the expert-parallel rank; it holds experts ep_rank * n to (ep_rank + 1) * n - 1 of every layer.
    `expert_split`: expert tensor parallel rank and size, if experts are not split over tp as other weights are.
    """
    model = language_of(chunk)
    layers = getattr(getattr(model, "decoder", None), "layers", None)
    numbers = {} if layers is None else {index: layer.layer_number - 1 for index, layer in enumerate(layers)}
    whole = (tp_rank, tp_size)
    gated = getattr(getattr(model, "config", None), "gated_linear_unit", True)
    for local_name, parameter in chunk.named_parameters():
        name = local_name.removeprefix("language_model.")
        # The tower has a decoder of its own, which is not split over stages: its layer numbers are global already.
        if not name.startswith(TOWER):
            name = _LAYER.sub(lambda match: f"decoder.layers.{numbers[int(match.group(1))]}.", name)
        index, count = whole
        if expert := _EXPERT.search(name):
            index, count = expert_split or whole
            owner = chunk.get_submodule(local_name.partition("local_experts.")[0] + "local_experts")
            name = _EXPERT.sub(f"experts.{ep_rank * len(owner) + int(expert.group(1))}.", name)
        elif expert := _GROUPED.search(name):
            index, count = expert_split or whole
            owner = chunk.get_submodule(local_name.rpartition(".")[0])
            name = _GROUPED.sub(f"experts.{ep_rank * owner.num_gemms + int(expert.group(2))}.{expert.group(1)}", name)
        if name == _OUTPUT and _is_tied(model):
            name = TIED_NAME  # the last stage's copy of the embedding is the same parameter
        split, sections = _split_dim(chunk, local_name, parameter), _sections(chunk, local_name)
        # By the name with the wrapper and the module of the convolution: `_STACKED` and `_sections` look for them.
        pieces = 2 if gated and _STACKED.search(name) and not name.startswith(TOWER) else 1
        shard = _shard_of(parameter, split if count > 1 else None, pieces, index, count)
        if shard.dim is not None:
            shard = replace(shard, sections=sections)
        name = name.replace(_WRAPPED, ".")
        name = _CONVOLUTION.sub(r"\1_", name)
        expert_shard = index if expert and expert_split else None
        yield NamedParameter(
            name=name,
            parameter=parameter,
            shard=shard,
            split=split,
            sections=sections,
            pieces=pieces,
            expert_shard=expert_shard,
        )


def _is_tied(model: Any) -> bool:
    """Return whether the weight of the output layer is a copy of the embedding on another stage.

    A last stage with prediction layers has the embedding itself. Models of plug-ins may tie nothing.
    """
    if not isinstance(model, LanguageModule) or hasattr(model, "embedding"):
        return False
    return bool(model.share_embeddings_and_output_weights)


def is_expert(name: str) -> bool:
    """Return whether a parameter, by its global name, belongs to one of a layer's experts."""
    return ".experts." in name


def _sections(chunk: Any, local_name: str) -> tuple[int, ...]:
    """Return the sections of a parameter of a recurrent layer; empty for all others."""
    recurrent = _RECURRENT.search(local_name)
    if recurrent is None:
        return ()
    owner = chunk.get_submodule(local_name[: recurrent.end(1)])
    return sections_of(owner, local_name[recurrent.end() :]) if is_recurrent(owner) else ()


def _split_dim(chunk: Any, local_name: str, parameter: Any) -> int | None:
    """Return the dimension in which tensor parallelism splits a parameter; None if every rank holds the whole of it.

    Upstream marks split parameters, except those of one number per head and the magnitudes of DoRA (which its
    checkpoints do split).
    """
    if local_name.endswith(_PER_HEAD):
        return 0
    if local_name.endswith(_MAGNITUDE):
        return None if chunk.get_submodule(local_name.removesuffix(_MAGNITUDE)).input_is_parallel else 0
    if getattr(parameter, "tensor_model_parallel", False):
        return int(parameter.partition_dim)
    owner, _, own_name = local_name.rpartition(".")
    return _SPLIT.get(type(chunk.get_submodule(owner)).__name__) if own_name == "weight" else None


def _shard_of(parameter: Any, dim: int | None, pieces: int, tp_rank: int, tp_size: int) -> Shard:
    shape = list(parameter.shape)
    if dim is None:
        return Shard(full=tuple(shape), dim=None, pieces=1, index=0, count=1)
    shape[dim] *= tp_size
    return Shard(full=tuple(shape), dim=dim, pieces=pieces, index=tp_rank, count=tp_size)


MAX_PARTS = 8  # enough to compose the shards of tp 2, 4 and 8


def parts_of(named: NamedParameter) -> list[Shard]:
    """Return the shards into which tensor parallelism would split a whole parameter; empty if it would not."""
    full, dim = named.shard.full, named.split
    if named.shard.dim is not None or dim is None:
        return []
    pieces = named.pieces
    sizes = named.sections or (full[dim] // pieces,) * pieces
    # The most parts into which every section splits evenly.
    even = (count for count in (MAX_PARTS, 4, 2) if sum(sizes) == full[dim] and not any(n % count for n in sizes))
    count = next(even, 0)
    return [
        Shard(full=full, dim=dim, pieces=pieces, index=index, count=count, sections=named.sections)
        for index in range(count)
    ]


def initialize(chunk: Any, *, seed: int, only_trained: bool = False, **ranks: Any) -> None:
    """Overwrite every parameter, or those that train.

    Norm weights become 1 + small noise, so that their gradients differ.

    `ranks`: which shards this rank holds, as for `named_parameters`.
    """
    with torch.no_grad():
        for named in named_parameters(chunk, **ranks):
            if only_trained and not named.parameter.requires_grad:
                continue
            full = initial_weight(named.name, named.shard.full, seed)
            named.parameter.copy_(named.shard.take(full))


def forget(chunks: list[Any]) -> None:
    """Overwrite all weights of model chunks with numbers that no training survives, until they are loaded."""
    with torch.no_grad():
        for chunk in chunks:
            for parameter in chunk.parameters():
                # A parameter that the checkpoint does not restore makes every number after it NaN, and cannot pass
                # unseen.
                parameter.fill_(torch.nan)
