"""Canary legs: forwards beyond the training leg, over varied documents of step 0 with the initial weights.

Pure, so that ranks and the judge derive the same legs from a cell's configuration. Each leg varies something whose
effect is known without a control: usually none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from harness.core.cell.config import CANARIES, NOISE, CellConfig
from harness.core.cell.modelled import not_modelled_in
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.documents import Document
from harness.core.packing.packers import row_multiple
from harness.core.run.records import CanaryLeg

NOISE_LEGS = {
    "noise-order": "documents in reverse order",
    "noise-epsilon": "weights moved by one machine epsilon",
    "noise-dtype": "the oracle in the cell's dtype",  # of the oracle's record; no rank runs it
}
LEG_NAMES: tuple[CanaryLeg, ...] = get_args(CanaryLeg)
_OF_OTHERS = ("isolation", "repetition", "order", "padding")  # what must not depend on the other slots of a row


@dataclass(frozen=True, kw_only=True)
class Leg:
    """A leg. Its documents keep the indices, and so the contents, that they have in step 0, unless `changed`."""

    name: CanaryLeg
    canary: str  # one of CANARIES, or NOISE: why it runs
    documents: tuple[Document, ...]
    changed: frozenset[int] = frozenset()  # indices of documents with other tokens than in step 0
    model: bool = True  # False: batches are only fetched and compared with the plan
    backward: bool = False
    trains: bool = False  # step 0 is followed by the updates, steps and evaluations of the training leg
    other_padding: bool = False  # padding slots hold another token id

    def micro_batches(self, config: CellConfig) -> list[list[MicroBatch]]:
        """Its micro-batches, indexed [dp][i]."""
        return config.packed(self.documents)


def legs_of(config: CellConfig) -> list[Leg]:
    """Return the legs that a cell runs, in order; those of a canary that does not apply are left out."""
    legs = [leg for name in config.canaries if not why_not(config, name) for leg in _LEGS[name](config)]
    return sorted(legs, key=lambda leg: LEG_NAMES.index(leg.name))


def shared_passes(legs: Sequence[Leg]) -> list[list[Leg]]:
    """Return the legs by pass, in order: successive ones that run the model without a backward share one.

    Gradients of a pass are the sum over its micro-batches, so a leg with a backward has a pass alone.
    """
    passes: list[list[Leg]] = []
    for leg in legs:
        if passes and all(other.model and not other.backward for other in (leg, passes[-1][-1])):
            passes[-1].append(leg)
        else:
            passes.append([leg])
    return passes


def why_not(config: CellConfig, canary: str) -> str:
    """Return why a requested canary does not apply to this cell; empty if it does."""
    if canary not in (*CANARIES, NOISE):
        raise ValueError(f"unknown canary {canary!r}")
    if not config.train.steps:
        return "the cell only fetches batches: train.steps is 0"
    if not config.trained_by_harness:
        return "upstream's trainer does nothing but train; the same cell with trainer harness runs canary legs"
    if config.model.drops and canary in _OF_OTHERS:
        return "experts have a capacity, so which tokens they drop depends on all tokens of a row"
    if fixed := config.path.canaries_without_effect.get(canary):
        return fixed
    try:
        legs = _LEGS[canary](config)
    except ValueError as error:  # the documents chosen for it do not make rows for this layout
        return f"canary {canary}: {error}"
    largest = max((config.style.size(document) for leg in legs for document in leg.documents), default=0)
    if largest > config.train.seq_length:
        return f"a document padded to {largest} slots does not fit a row of {config.train.seq_length}"
    for leg in legs:
        try:
            leg.micro_batches(config)
        except ValueError as error:
            return f"leg {leg.name}: {error}"
    return "" if legs else _NOTHING_TO_VARY[canary]


def _isolation(config: CellConfig) -> list[Leg]:
    """In each micro-batch one document gets other tokens: the first one, and in a second leg one in the middle.

    One per micro-batch, so that it is known which document leaks. Attention is causal, so it leaks into later ones.
    """
    documents = _few(config, lambda batch: len(batch.placed) > 2)
    batches = [batch.placed for replica in config.packed(documents) for batch in replica]
    chosen: dict[CanaryLeg, frozenset[int]] = {
        "isolation": frozenset(placed[0].document.index for placed in batches if len(placed) > 1),
        "isolation-middle": frozenset(placed[len(placed) // 2].document.index for placed in batches if len(placed) > 2),
    }
    return [
        Leg(name=name, canary="isolation", documents=documents, changed=changed)
        for name, changed in chosen.items()
        if changed
    ]


def _repetition(config: CellConfig) -> list[Leg]:
    """Make all documents copies of one, so short that all fit into one row, which is then split as the layout needs.

    If the data path does not split rows, or not the first one, the length is such that they fill as many rows.
    """
    count, seq_length = config.train.global_batch, config.train.seq_length
    if not config.style.packed or count < 2:
        return []
    split = config.style.packer.splits_to_single_documents
    rows = 1 if split else row_multiple(config.layout, config.micro_batch_size)
    length = max(seq_length // -(-count // rows) - 1, min(3, seq_length - 1))
    documents = tuple(
        Document(index=index, length=length, original_length=length, copy_of=0 if index else None)
        for index in range(count)
    )
    return [Leg(name="repetition", canary="repetition", documents=documents)]


def _order(config: CellConfig) -> list[Leg]:
    if not config.style.packed:
        return []
    documents = _few(config, lambda batch: len(batch.placed) > 2)[::-1]
    return [Leg(name="order", canary="order", documents=documents)] if len(documents) > 1 else []


def _determinism(config: CellConfig) -> list[Leg]:
    documents = tuple(config.documents_of(0))
    return [Leg(name="determinism", canary="determinism", documents=documents, backward=True)]


def _padding(config: CellConfig) -> list[Leg]:
    if all(batch.slots == batch.real_tokens for replica in config.micro_batches(0) for batch in replica):
        return []
    documents = _few(config, lambda batch: batch.slots > batch.real_tokens)
    return [Leg(name="padding", canary="padding", documents=documents, other_padding=True)]


def _truncation(config: CellConfig) -> list[Leg]:
    """Make every other document too long; not needed if the metadata leg saw such a document in step 0."""
    given = config.documents_of(0)
    if any(document.original_length > document.length for document in given):
        return []
    most = config.train.seq_length - 1
    documents = tuple(
        document if document.index % 2 else replace(document, length=most, original_length=most + 10, copy_of=None)
        for document in given
    )
    return [Leg(name="truncation", canary="truncation", documents=documents, model=False)]


def _few(config: CellConfig, wanted: Callable[[MicroBatch], bool]) -> tuple[Document, ...]:
    """Return documents of every replica's first micro-batches, up to one that is `wanted`, which keeps the leg short.

    All documents of step 0 if no micro-batch is `wanted`, or if fewer documents would be packed differently.
    """
    step, given = config.micro_batches(0), tuple(config.documents_of(0))
    together = config.layout.pp if config.layout.vpp > 1 else 1  # interleaving needs a multiple of pp micro-batches
    for count in range(together, len(step[0]), together):
        first = [replica[:count] for replica in step]
        if any(wanted(batch) for replica in first for batch in replica):
            inside = {item.document.index for replica in first for batch in replica for item in batch.placed}
            documents = tuple(document for document in given if document.index in inside)
            return documents if config.packed(documents) == first else given
    return given


def _noise(config: CellConfig) -> list[Leg]:
    """Return the legs that measure noise; in fp32 those of step 0 are not needed, since its bounds are fixed.

    With a control that the oracle models no cell is compared.
    """
    if not not_modelled_in(config):
        return []
    documents = tuple(config.documents_of(0))
    order = Leg(name="noise-order", canary=NOISE, documents=documents[::-1], backward=True)
    epsilon = Leg(name="noise-epsilon", canary=NOISE, documents=documents, backward=True, trains=True)
    return [epsilon] if config.dtype == "fp32" else [order, epsilon]


_LEGS: dict[str, Callable[[CellConfig], list[Leg]]] = {
    "isolation": _isolation,
    "repetition": _repetition,
    "order": _order,
    "determinism": _determinism,
    "padding": _padding,
    "truncation": _truncation,
    NOISE: _noise,
}
_NOTHING_TO_VARY = {
    NOISE: "the oracle has its own",
    "isolation": "no micro-batch holds two documents",
    "repetition": "documents do not share rows",
    "order": "documents do not share rows",
    "determinism": "",
    "padding": "no slot is padding",
    "truncation": "step 0 has a truncated document already, which the metadata leg saw",
}
