"""What a rank records of tensors: fingerprints of gradients, activations, updates, the state of training, and of the
operations of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.core.cell.layout import Coordinates

OperationKind = Literal["operation", "communication", "receives", "returns"]


@dataclass(kw_only=True)
class Fingerprint:
    """Sum of squares and random projections of a tensor; those of its shards add up to those of the whole."""

    norm_sq: float
    projections: list[float]


@dataclass(kw_only=True)
class UpdateSeen:
    """Fingerprints of what the optimizer made of this rank's shard of a parameter: of step 0, but for `trained`."""

    first_moment: Fingerprint  # Adam's exp_avg
    second_moment: Fingerprint  # Adam's exp_avg_sq
    change: Fingerprint  # of the optimizer's own copy of the weight
    trained: Fingerprint | None = None  # change of that weight over all steps; None until the last one
    # Elements of the model's weight that are not the optimizer's, rounded, after all steps; None until the last one.
    stale: int | None = None


@dataclass(kw_only=True)
class OptimizerSeen:
    """In what precision a rank's optimizer works, and by what weights decay, after the first update; sorted."""

    gradients: list[str]  # dtypes in which gradients are accumulated and reduced
    weights: list[str]  # dtypes of its copies of the weights
    moments: list[str]
    matrix_decays: list[float]  # weight decay of parameters with several dimensions
    vector_decays: list[float]  # of biases and norms


@dataclass(kw_only=True)
class ParameterSeen:
    """Fingerprint of this rank's shard of a parameter's gradient after reduction, before clipping (step 0)."""

    name: str  # global name, layers numbered over the whole model
    sharded: bool  # False: every tp rank holds the whole tensor
    gradient: Fingerprint
    parts: list[Fingerprint] = field(default_factory=list)  # one-rank cells: of the equal parts that tp would make
    update: UpdateSeen | None = None  # None in legs, which have no optimizer
    in_norm: bool | None = None  # whether upstream's gradient norm counts it on this rank; None in legs
    shard: int | None = None  # of an expert that is not split over tp as other weights are: expert tensor parallel rank


@dataclass(kw_only=True)
class ActivationSeen:
    """Fingerprints of a layer's output per document over this rank's real tokens (step 0)."""

    layer: int  # global, from 1; 0 is the embedding output
    documents: dict[int, Fingerprint]


@dataclass(kw_only=True)
class StoredParameter:
    """What a checkpoint must hold of this rank's shard of a parameter, in the precision of the optimizer."""

    name: str
    sharded: bool  # over tp
    weight: Fingerprint
    first_moment: Fingerprint
    second_moment: Fingerprint
    digest: str = ""  # if the layouts are the same: of the bytes of all three that this rank's optimizer holds


@dataclass(kw_only=True)
class FrozenSeen:
    """A weight that does not train, since the model has adapters; this rank's shard of it."""

    name: str  # global name, as of a parameter that trains
    sharded: bool
    before: str  # digest of its bytes before the first step
    after: str = ""  # digest of its bytes after the last step
    gradient: bool = False  # whether it had a gradient after the last step
    shard: int | None = None  # as of a parameter that trains


@dataclass(kw_only=True)
class MergedSeen:
    """A weight with its adapter merged into it by upstream; this rank's shard."""

    name: str  # of the frozen weight
    sharded: bool
    before: Fingerprint  # of the initial weights
    after: Fingerprint | None = None  # of the weights after the last step
    output_off: float | None = None  # |output of merged layer - of adapted one| / |output of adapter|; None: of experts
    shard: int | None = None


STORED = {  # the tensors of StoredParameter, and what messages call them
    "weight": "the weight",
    "first_moment": "the first moment",
    "second_moment": "the second moment",
}


@dataclass(kw_only=True)
class StateSeen:
    """The state of training that a checkpoint holds: when it is saved, once it is loaded, and at the end."""

    after: int  # number of finished steps
    parameters: list[StoredParameter]
    updates: int  # that the optimizer has counted, for Adam's correction of its first moments
    scheduled: int  # rows that the schedule of the learning rate has counted
    random: str = ""  # when saved and loaded in the same layout: digest of the states of this rank's random generators


@dataclass(kw_only=True)
class TensorOfOperation:
    """A tensor that an operation takes or gives, in the first micro-batch; `documents` are over all of them."""

    shape: list[int]
    dtype: str  # "float32"
    norm: float | None = None  # Euclidean
    name: str = ""  # of a parameter, inside the layer
    values: list[int] | None = None  # of a small tensor of whole numbers, such as cu_seqlens
    features: int = 0  # numbers per token; 0: not comparable token by token
    documents: dict[int, Fingerprint] = field(default_factory=dict)  # over this rank's real tokens


@dataclass(kw_only=True)
class OperationSeen:
    """One operation in the forward of a layer, or what a module of it receives or returns."""

    module: str  # inside the layer, "self_attention.linear_qkv"; empty: the layer itself
    name: str  # "aten.mm"; "receives" and "returns" of modules
    kind: OperationKind
    number: int  # from 0, among those of its name in its module in a micro-batch
    micro_batches: int = 1  # that have it; loops over documents run more often in some
    text: str = ""  # as torch's debug mode prints it
    inputs: list[TensorOfOperation] = field(default_factory=list)
    outputs: list[TensorOfOperation] = field(default_factory=list)


@dataclass(kw_only=True)
class OperationsSeen:
    """The operations of one layer on one rank, over the micro-batches of step 0, in order."""

    rank: int
    place: Coordinates
    layer: int  # global, from 1; 0 is the embedding
    mode: str  # class of torch that observed them
    torch: str  # its version
    micro_batches: int = 0
    operations: list[OperationSeen] = field(default_factory=list)
