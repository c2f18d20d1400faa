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
from harness.core.text import counted
from harness.core.tolerances import Bound
from harness.judge.locations import numbered
from harness.judge.stats.distance import add, beyond, bound_text, fingerprint_distance, finite

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


def compare_operations(
    cell: Mapping[int, OperationsSeen], reference_record: OperationsSeen, bound: Bound, reference: str
) -> OperationsCompared:
    """Compare the records of a cell's ranks with that of the `reference`, "oracle" or "control".

    ValueError if the cell has none.
    """
    if not cell:
        raise ValueError("the cell recorded no operation")
    ranks = [cell[rank] for rank in sorted(cell)]
    sides = _Sides(ranks, bound, computes=reference == "control")
    by_token = {id(seen) for seen in _in_all(reference_record)}
    rows = tuple(sides.rows([seen if id(seen) in by_token else _bare(seen) for seen in reference_record.operations]))
    return OperationsCompared(
        layer=reference_record.layer,
        ranks=tuple(seen.rank for seen in ranks),
        cell_mode=f"{ranks[0].mode} of torch {ranks[0].torch}",
        reference_mode=f"{reference_record.mode} of torch {reference_record.torch}",
        reference=reference,
        bound=bound,
        rows=rows,
        first=next((number for number, row in enumerate(rows) if row.differs), None),
    )


class _Sides:
    """The records of the cell's ranks, by operation."""

    def __init__(self, ranks: Sequence[OperationsSeen], bound: Bound, *, computes: bool) -> None:
        """Index operations by name. `computes`: whether the reference has operations, not only what modules return."""
        self.ranks, self.bound, self.computes = ranks, bound, computes
        self.operations = [{_key(operation): operation for operation in _in_all(rank)} for rank in ranks]
        self.tp = 1 + max(rank.place.tp for rank in ranks)

    def rows(self, reference_operations: Sequence[OperationSeen]) -> Iterator[OperationRow]:
        """Pair operations of the same name in the same module in order; others have one side only.

        Communication has no counterpart on one rank. It is compared with what the control computed last, since it
        gathers or sums that; the oracle has what modules return alone.
        """
        left = self.ranks[0].operations
        matcher = difflib.SequenceMatcher(
            None,
            [_name(operation) for operation in left],
            [_name(operation) for operation in reference_operations],
            False,
        )
        before: TensorOfOperation | None = None
        for tag, left_from, left_to, right_from, right_to in matcher.get_opcodes():
            if tag == "equal":
                for own, reference in zip(left[left_from:left_to], reference_operations[right_from:right_to]):
                    yield self._row(own, reference)
                    before = next((tensor for tensor in _given(reference) if tensor.documents), before)
                continue
            for own in left[left_from:left_to]:
                yield self._communication(own, before)
            for reference in reference_operations[right_from:right_to]:
                yield OperationRow(
                    module=reference.module,
                    name=reference.name,
                    kind=reference.kind,
                    cell=None,
                    reference=_bare(reference),
                )
                before = next((tensor for tensor in _given(reference) if tensor.documents), before)

    def _row(self, own: OperationSeen, reference: OperationSeen) -> OperationRow:
        off = self._off(own, _given, _given(reference))
        boundary = own.kind in ("receives", "returns")
        return OperationRow(
            module=own.module,
            name=own.name,
            kind=own.kind,
            cell=_bare(own),
            reference=_bare(reference),
            off=off,
            inputs_off=None if boundary else self._off(own, _taken, reference.inputs),
            differs=self._beyond(off),
        )

    def _communication(self, own: OperationSeen, before: TensorOfOperation | None) -> OperationRow:
        off = None
        if own.kind == "communication" and before is not None and self.computes:
            off = self._off(own, _given, [before] * len(own.outputs))
        return OperationRow(
            module=own.module,
            name=own.name,
            kind=own.kind,
            cell=_bare(own),
            reference=None,
            off=off,
            differs=self._beyond(off),
        )

    def _beyond(self, off: Off | None) -> bool:
        return off is not None and beyond(off.distance, self.bound)

    def _off(self, own: OperationSeen, side: _Tensors, expected: Sequence[TensorOfOperation]) -> Off | None:
        """Return the farthest of the tensors that both have by token; None if there are none."""
        offs = []
        for index, tensor in enumerate(expected):
            by_rank = [(rank.place.tp, _at(known.get(_key(own)), side, index)) for rank, known in self._with_ranks()]
            off = self._tensor_off(by_rank, tensor)
            offs += [off] if off is not None else []
        return max(offs, key=lambda off: off.distance, default=None)

    def _with_ranks(self) -> Iterator[tuple[OperationsSeen, Mapping[_Key, OperationSeen]]]:
        return zip(self.ranks, self.operations)

    def _tensor_off(
        self, by_rank: Sequence[tuple[int, TensorOfOperation | None]], expected: TensorOfOperation
    ) -> Off | None:
        """Compare one tensor; `by_rank`: tp rank and tensor of each rank. None also if some rank lacks it by token."""
        sizes = {tensor.features if tensor is not None else 0 for _, tensor in by_rank}
        features = min(sizes)
        if (
            len(sizes) > 1
            or not features
            or not expected.documents
            or not all(map(finite, expected.documents.values()))
        ):
            return None
        shards = self.tp > 1 and features * self.tp == expected.features
        if features != expected.features and not shards:
            return None
        by_tp: dict[int, dict[int, Fingerprint]] = {tp: {} for tp, _ in by_rank}
        for tp, tensor in by_rank:
            by_tp[tp] = _total([by_tp[tp], tensor.documents if tensor is not None else {}])
        ways = [] if features != expected.features else [_farthest(by_tp.values(), expected, self.bound, WHOLE)]
        if self.tp > 1:
            total = [_total(by_tp.values())]
            ways.append(_farthest(total, expected, self.bound, SHARDS))
            ways += [] if features != expected.features else [_farthest(total, expected, self.bound, PARTIAL)]
        return min(ways, key=lambda off: off.distance)


def _farthest(sides: Iterable[Mapping[int, Fingerprint]], reference: TensorOfOperation, bound: Bound, held: str) -> Off:
    """Return the document that is farthest off on any of the sides, each of which should equal the reference."""
    worst = Off(distance=0.0, document=min(reference.documents), held=held)
    for side in sides:
        for document in sorted({*side, *reference.documents}):
            measured, expected = side.get(document), reference.documents.get(document)
            distance = math.inf
            if measured is not None and expected is not None:
                measured = replace(measured, norm_sq=expected.norm_sq) if held == PARTIAL else measured
                distance = fingerprint_distance(measured, expected, bound) if finite(measured) else math.inf
            if distance > worst.distance:
                worst = Off(distance=distance, document=document, held=held)
    return worst


def _total(sides: Iterable[Mapping[int, Fingerprint]]) -> dict[int, Fingerprint]:
    """Return document -> fingerprint, summed over sides."""
    total: dict[int, Fingerprint] = {}
    for side in sides:
        for document, part in side.items():
            total[document] = add(total[document], part) if document in total else part
    return total


def _in_all(seen: OperationsSeen) -> Iterator[OperationSeen]:
    """Yield the operations of every micro-batch. Others cannot be compared: their documents are only some."""
    return (operation for operation in seen.operations if operation.micro_batches == seen.micro_batches)


def _at(known: OperationSeen | None, side: _Tensors, index: int) -> TensorOfOperation | None:
    tensors = side(known) if known is not None else ()
    return tensors[index] if index < len(tensors) else None


def _given(operation: OperationSeen) -> Sequence[TensorOfOperation]:
    """Return the tensors by which an operation is judged: its outputs."""
    return operation.outputs


def _taken(operation: OperationSeen) -> Sequence[TensorOfOperation]:
    return operation.inputs


def _key(operation: OperationSeen) -> _Key:
    return _Key(operation.module, operation.name, operation.number)


def _name(operation: OperationSeen) -> tuple[str, str]:
    return operation.module, operation.name


def _bare(operation: OperationSeen) -> OperationSeen:
    """Return the operation without its documents, which are many numbers and only of one rank."""
    bare = [[replace(tensor, documents={}) for tensor in side] for side in (operation.inputs, operation.outputs)]
    return replace(operation, inputs=bare[0], outputs=bare[1])


_AFTER = 8  # rows after the first that differs
_NAME, _SHAPE = 33, 16  # columns
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u"}
_LEGEND = "> first that differs   ! differs   ~ communication   - not compared"


def operations_text(compared: OperationsCompared) -> str:
    """Return the whole text: what observed the operations, the table, and the first difference in words."""
    what = f"layer {compared.layer}" if compared.layer else "the embedding"
    modes = [compared.cell_mode]
    if compared.reference == "control" and compared.reference_mode != compared.cell_mode:
        modes.append(compared.reference_mode)
    head = [
        f"{what} in step 0 on {numbered('rank', compared.ranks)}, beside the {compared.reference}",
        f"observed with {' and '.join(modes)}",
        "",
        f"  {'off':<8} {'operation':<{_NAME}} {'cell':<{_SHAPE}} {compared.reference:<{_SHAPE}}".rstrip(),
    ]
    return "\n".join([*head, *_table(compared), "", _LEGEND, "", *_first(compared)])


def _table(compared: OperationsCompared) -> Iterator[str]:
    """Yield a line per row. Rows that cannot be compared are counted if there are several, except communication."""
    first = compared.first
    shown = compared.rows if first is None else compared.rows[: first + 1 + _AFTER]
    module, skipped = "", 0
    for number, row in enumerate(shown):
        if row.off is None and row.kind != "communication":
            skipped += 1
            continue
        if skipped:
            yield _skipped(skipped)
            skipped = 0
        if row.module != module:
            module = row.module
            yield f"{'':11}{module or what_of(compared)}"
        yield _line(row, number == first)
    if skipped:
        yield _skipped(skipped)
    if rest := len(compared.rows) - len(shown):
        differing = sum(row.differs for row in compared.rows[len(shown) :])
        yield f"{'':11}and {counted(rest, 'more row')}, of which {differing} differ"


def what_of(compared: OperationsCompared) -> str:
    """Return the name of the layer as a module."""
    return f"layer {compared.layer}" if compared.layer else "embedding"


def _skipped(count: int) -> str:
    return f"  {'-':<8} {'':2}{counted(count, 'operation')} not compared"


def _line(row: OperationRow, first: bool) -> str:
    mark = ">" if first else "!" if row.differs else " "
    communication = "~" if row.kind == "communication" else " "
    name = f" {communication}{row.name}"
    sides = [_shapes(side) for side in (row.cell, row.reference)]
    return f"{mark} {_distance(row.off):<8} {name[:_NAME]:<{_NAME}} {sides[0]:<{_SHAPE}} {sides[1]:<{_SHAPE}}".rstrip()


def _distance(off: Off | None) -> str:
    if off is None:
        return "-"
    if math.isinf(off.distance):
        return "missing"
    return "equal" if off.distance == 0 else f"{off.distance:.1e}"


def _shapes(side: OperationSeen | None) -> str:
    """Return the first tensor by token, else the first, that an operation gives."""
    if side is None or not side.outputs:
        return ""
    return _form(next((tensor for tensor in side.outputs if tensor.features), side.outputs[0]))


def _form(tensor: TensorOfOperation) -> str:
    """Return text such as "46x1x64 f32"."""
    dtype = tensor.dtype
    letters, digits = dtype.rstrip("0123456789"), dtype[len(dtype.rstrip("0123456789")) :]
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{shape} {_SHORT.get(letters, letters)}{digits}"


def _first(compared: OperationsCompared) -> Iterator[str]:
    """Yield the first difference in words, with its inputs and outputs on both sides."""
    if compared.first is None:
        yield f"no operation differs by more than {bound_text(compared.bound)}"
        return
    row = compared.rows[compared.first]
    assert row.off is not None
    place = f"{row.module}: " if row.module else ""
    yield f"first difference: {place}{row.name}"
    how = "is missing" if math.isinf(row.off.distance) else f"is off by {row.off.distance:.3g}"
    held = "" if row.off.held == WHOLE else f", compared as {row.off.held} on tp ranks"
    yield f"  document {row.off.document} {how}{held}; the bound is {bound_text(compared.bound)}"
    yield f"  {_origin(compared, row)}"
    for side, operation in (("cell", row.cell), (compared.reference, row.reference)):
        if operation is None:
            yield f"  {side}: no such operation; compared with what it computed last"
            continue
        for what, tensors in (("takes", operation.inputs), ("gives", operation.outputs)):
            for tensor in tensors:
                yield f"  {side} {what} {_described(tensor)}"


def _described(tensor: TensorOfOperation) -> str:
    parts = [_form(tensor)]
    parts += [tensor.name] if tensor.name else []
    parts += [str(tensor.values)] if tensor.values is not None else []
    parts += [f"norm {tensor.norm:.6g}"] if tensor.norm is not None and tensor.values is None else []
    return ", ".join(parts)


def _origin(compared: OperationsCompared, row: OperationRow) -> str:
    """Return whether the difference arises here or comes with the inputs."""
    before = compared.rows[: compared.first]
    if row.kind == "receives" and not any(earlier.off is not None for earlier in before):
        return "the layer receives it; an earlier layer, or what is passed to all layers, is wrong"
    if row.kind == "receives":
        return "it arises before this module, in operations that are not compared"
    if row.kind == "returns":
        entered = _received(before, row.module)
        if entered is not None and entered.off is not None:
            return "what the module receives is right, so it arises inside this module"
        return "what it receives is not compared; what was compared before is right"
    if row.inputs_off is None:
        return "its inputs cannot be compared by token"
    if row.inputs_off.distance > compared.bound.value:
        return "its inputs differ already, by operations that are not compared"
    return "its inputs are right, so it arises here"


def _received(before: Sequence[OperationRow], module: str) -> OperationRow | None:
    return next((row for row in reversed(before) if row.module == module and row.kind == "receives"), None)
