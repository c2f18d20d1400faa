"""The operations of one layer of a cell beside those of the oracle, or where it does not model the cell of its
control, and the first that computes something else.

Values are compared per document, summed over the ranks that hold parts of it. The reference has whole tensors, so each
tensor of a cell is compared in the way in which it is nearest: every tp rank has it whole, or holds a shard of it, or
a partial sum.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from harness.core.run.tensor_records import Fingerprint, OperationSeen, OperationsSeen, TensorOfOperation
from harness.core.tolerances import Bound
from harness.judge.stats.distance import add, beyond, fingerprint_distance, finite

WHOLE, SHARDS, PARTIAL = "whole", "shards", "partial sums"


@dataclass(frozen=True, kw_only=True)
class Off:
    """How far a tensor of the cell is from that of the reference."""

    distance: float  # of the document that is farthest off; infinite where one side lacks it
    document: int
    held: str  # by tp ranks: WHOLE, SHARDS or PARTIAL


@dataclass(frozen=True, kw_only=True)
class OperationRow:
    """An operation of the cell, of the reference, or of both."""

    module: str
    name: str
    kind: str
    cell: OperationSeen | None  # of the cell's first rank that has the layer, its documents over all ranks left out
    reference: OperationSeen | None
    off: Off | None = None  # of its outputs (of a module's inputs: of those); None if they cannot be compared
    inputs_off: Off | None = None
    differs: bool = False


@dataclass(frozen=True, kw_only=True)
class OperationsCompared:
    """All rows in the order of the cell. `first`: index of the first row that differs, None if no row does."""

    layer: int
    ranks: tuple[int, ...]  # of the cell that have the layer
    cell_mode: str
    reference_mode: str
    reference: str  # "oracle" or "control"
    bound: Bound
    rows: tuple[OperationRow, ...]
    first: int | None


class _Key(NamedTuple):
    module: str
    name: str
    number: int


_Tensors = Callable[[OperationSeen], Sequence[TensorOfOperation]]
_OfRank = tuple[int, "TensorOfOperation | None"]


def compare_operations(
    cell: Mapping[int, OperationsSeen], right: OperationsSeen, bound: Bound, reference: str
) -> OperationsCompared:
    """Compare the records of a cell's ranks with that of the `reference`, "oracle" or "control".

    ValueError if the cell has none.
    """
    if not cell:
        raise ValueError("the cell recorded no operation")
    ranks = [cell[rank] for rank in sorted(cell)]
    sides = _Sides(ranks, bound, computes=reference == "control")
    by_token = {id(one) for one in _in_all(right)}
    rows = tuple(sides.rows([one if id(one) in by_token else _bare(one) for one in right.operations]))
    return OperationsCompared(
        layer=right.layer,
        ranks=tuple(one.rank for one in ranks),
        cell_mode=f"{ranks[0].mode} of torch {ranks[0].torch}",
        reference_mode=f"{right.mode} of torch {right.torch}",
        reference=reference,
        bound=bound,
        rows=rows,
        first=next((number for number, row in enumerate(rows) if row.differs), None),
    )


class _Sides:
    """The records of the cell's ranks, by operation."""

    def __init__(self, ranks: Sequence[OperationsSeen], bound: Bound, *, computes: bool) -> None:
        """`computes`: whether the reference has operations, not only what modules return."""
        self.ranks, self.bound, self.computes = ranks, bound, computes
        self.found = [{_key(one): one for one in _in_all(rank)} for rank in ranks]
        self.tp = 1 + max(rank.place.tp for rank in ranks)

    def rows(self, right: Sequence[OperationSeen]) -> Iterator[OperationRow]:
        """Operations of the same name in the same module are paired in order; others have one side only.

        Communication has no counterpart on one rank. It is compared with what the control computed last, since it
        gathers or sums that; the oracle has what modules return alone.
        """
        left = self.ranks[0].operations
        matcher = difflib.SequenceMatcher(None, [_name(one) for one in left], [_name(one) for one in right], False)
        before: TensorOfOperation | None = None
        for tag, left_from, left_to, right_from, right_to in matcher.get_opcodes():
            if tag == "equal":
                for mine, other in zip(left[left_from:left_to], right[right_from:right_to]):
                    yield self._row(mine, other)
                    before = next((one for one in _given(other) if one.documents), before)
                continue
            for mine in left[left_from:left_to]:
                yield self._communication(mine, before)
            for other in right[right_from:right_to]:
                yield OperationRow(
                    module=other.module, name=other.name, kind=other.kind, cell=None, reference=_bare(other)
                )
                before = next((one for one in _given(other) if one.documents), before)

    def _row(self, mine: OperationSeen, other: OperationSeen) -> OperationRow:
        off = self._off(mine, _given, _given(other))
        boundary = mine.kind in ("receives", "returns")
        return OperationRow(
            module=mine.module,
            name=mine.name,
            kind=mine.kind,
            cell=_bare(mine),
            reference=_bare(other),
            off=off,
            inputs_off=None if boundary else self._off(mine, _taken, other.inputs),
            differs=self._beyond(off),
        )

    def _communication(self, mine: OperationSeen, before: TensorOfOperation | None) -> OperationRow:
        off = None
        if mine.kind == "communication" and before is not None and self.computes:
            off = self._off(mine, _given, [before] * len(mine.outputs))
        return OperationRow(
            module=mine.module,
            name=mine.name,
            kind=mine.kind,
            cell=_bare(mine),
            reference=None,
            off=off,
            differs=self._beyond(off),
        )

    def _beyond(self, off: Off | None) -> bool:
        return off is not None and beyond(off.distance, self.bound)

    def _off(self, mine: OperationSeen, side: _Tensors, right: Sequence[TensorOfOperation]) -> Off | None:
        """The farthest of the tensors that both have by token; None if there are none."""
        found = []
        for index, other in enumerate(right):
            every = [(rank.place.tp, _at(known.get(_key(mine)), side, index)) for rank, known in self._with_ranks()]
            off = self._tensor_off(every, other)
            found += [off] if off is not None else []
        return max(found, key=lambda off: off.distance, default=None)

    def _with_ranks(self) -> Iterator[tuple[OperationsSeen, Mapping[_Key, OperationSeen]]]:
        return zip(self.ranks, self.found)

    def _tensor_off(
        self, every: Sequence[tuple[int, TensorOfOperation | None]], right: TensorOfOperation
    ) -> Off | None:
        """`every`: tp rank and tensor of each rank. None also if some rank does not have it by token."""
        sizes = {one.features if one is not None else 0 for _, one in every}
        features = min(sizes)
        if len(sizes) > 1 or not features or not right.documents or not all(map(finite, right.documents.values())):
            return None
        shards = self.tp > 1 and features * self.tp == right.features
        if features != right.features and not shards:
            return None
        by_tp: dict[int, dict[int, Fingerprint]] = {tp: {} for tp, _ in every}
        for tp, one in every:
            by_tp[tp] = _total([by_tp[tp], one.documents if one is not None else {}])
        ways = [] if features != right.features else [_farthest(by_tp.values(), right, self.bound, WHOLE)]
        if self.tp > 1:
            total = [_total(by_tp.values())]
            ways.append(_farthest(total, right, self.bound, SHARDS))
            ways += [] if features != right.features else [_farthest(total, right, self.bound, PARTIAL)]
        return min(ways, key=lambda off: off.distance)


def _farthest(sides: Iterable[Mapping[int, Fingerprint]], right: TensorOfOperation, bound: Bound, held: str) -> Off:
    """The document that is farthest off on any of the sides, each of which should equal the reference."""
    worst = Off(distance=0.0, document=min(right.documents), held=held)
    for side in sides:
        for document in sorted({*side, *right.documents}):
            found, expected = side.get(document), right.documents.get(document)
            distance = math.inf
            if found is not None and expected is not None:
                found = replace(found, norm_sq=expected.norm_sq) if held == PARTIAL else found
                distance = fingerprint_distance(found, expected, bound) if finite(found) else math.inf
            if distance > worst.distance:
                worst = Off(distance=distance, document=document, held=held)
    return worst


def _total(sides: Iterable[Mapping[int, Fingerprint]]) -> dict[int, Fingerprint]:
    """Document -> fingerprint, summed over sides."""
    total: dict[int, Fingerprint] = {}
    for side in sides:
        for document, part in side.items():
            total[document] = add(total[document], part) if document in total else part
    return total


def _in_all(seen: OperationsSeen) -> Iterator[OperationSeen]:
    """The operations of every micro-batch. Others cannot be compared: their documents are only some."""
    return (one for one in seen.operations if one.micro_batches == seen.micro_batches)


def _at(known: OperationSeen | None, side: _Tensors, index: int) -> TensorOfOperation | None:
    tensors = side(known) if known is not None else ()
    return tensors[index] if index < len(tensors) else None


def _given(one: OperationSeen) -> Sequence[TensorOfOperation]:
    """The tensors by which an operation is judged: its outputs."""
    return one.outputs


def _taken(one: OperationSeen) -> Sequence[TensorOfOperation]:
    return one.inputs


def _key(one: OperationSeen) -> _Key:
    return _Key(one.module, one.name, one.number)


def _name(one: OperationSeen) -> tuple[str, str]:
    return one.module, one.name


def _bare(one: OperationSeen) -> OperationSeen:
    """The operation without its documents, which are many numbers and only of one rank."""
    bare = [[replace(tensor, documents={}) for tensor in side] for side in (one.inputs, one.outputs)]
    return replace(one, inputs=bare[0], outputs=bare[1])
