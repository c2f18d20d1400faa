"""What modules of one layer receive and return in step 0, by upstream's names: for `harness explain --operations`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.run.records import PROJECTIONS, BuiltSeen
from harness.core.run.tensor_records import Fingerprint, OperationSeen, OperationsSeen, TensorOfOperation
from harness.oracle.choices import NO_CHOICES, Choices
from harness.oracle.drawing import draw
from harness.oracle.layers import NOTED, Noted
from harness.oracle.rows import Stream, stream_of
from harness.oracle.train import Oracle
from harness.oracle.weights import layer_name


def operations_of(config: CellConfig, built: Sequence[BuiltSeen], choices: Choices = NO_CHOICES) -> OperationsSeen:
    """Of layer `config.operations` of a cell whose ranks built a model with `built`, as one rank would record them.

    Biases that upstream adds after a module are left out of what it returns. Modules that the oracle computes otherwise
    are missing: single experts, and the inside of recurrent layers.
    """
    number = config.operations
    assert number is not None
    oracle = Oracle.of(config, built, choices=choices)
    layer = layer_name(number) if number else "embedding"
    found = OperationsSeen(
        rank=0, place=Coordinates(tp=0, cp=0, dp=0, pp=0), layer=number, mode="the oracle", torch=torch.__version__
    )
    known: dict[Noted, OperationSeen] = {}
    for replica, plans in enumerate(config.micro_batches(0)):
        for index, plan in enumerate(plans):
            stream = stream_of(config, 0, plan)
            found.micro_batches += 1
            for (module, name), tensors in _noted(oracle, stream, replica, index, layer):
                seen = known.get((module, name))
                made = [_tensor(tensor, stream, config) for tensor in tensors]
                if seen is None:
                    known[module, name] = OperationSeen(module=module, name=name, kind=name, number=0, outputs=made)
                    continue
                seen.micro_batches += 1
                for one, more in zip(seen.outputs, made):
                    one.documents |= more.documents
    found.operations = list(known.values())
    return found


def _noted(
    oracle: Oracle, stream: Stream, replica: int, number: int, layer: str
) -> Iterator[tuple[Noted, tuple[Tensor, ...]]]:
    """((module inside the layer, name), tensors [t, ...]) of a forward, in its order."""
    token = NOTED.set({})
    try:
        # Gradients are compared elsewhere, and autograd would keep every tensor of the forward.
        with torch.no_grad():
            oracle.forward(stream, 0, replica, number)
        noted = NOTED.get() or {}
    finally:
        NOTED.reset(token)
    for (at, name), tensors in noted.items():
        whole = all(len(tensor) == len(stream.documents) for tensor in tensors)  # not the slots of one expert
        if whole and (at == layer or at.startswith(f"{layer}.")):
            yield (at[len(layer) + 1 :], name), tensors


def _tensor(tensor: Tensor, stream: Stream, config: CellConfig) -> TensorOfOperation:
    """With the fingerprint of each document, as `token_fingerprints` of probe/hooks/fingerprints.py makes it."""
    rows = tensor.flatten(1).double()
    vectors = [
        draw(f"operation-{number}", "token", (config.train.seq_length,), config.train.seed).double()
        for number in range(PROJECTIONS)
    ]
    documents = {}
    for document in stream.indices:
        own = rows[stream.documents == document]
        # Sums over features, so that a split of the features over tp adds up.
        sums = own.sum(-1)
        documents[document] = Fingerprint(
            norm_sq=float(own.square().sum()), projections=[float(sums @ vector[: len(own)]) for vector in vectors]
        )
    return TensorOfOperation(
        shape=list(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        norm=float(tensor.double().norm()),
        features=rows.shape[-1],
        documents=documents,
    )
