"""The comparison of a layer's operations as a table of at most 80 columns, the first that differs marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.core.run.tensor_records import OperationSeen, TensorOfOperation
from harness.core.text import counted
from harness.judge.diagnosis.operations import WHOLE, Off, OperationRow, OperationsCompared
from harness.judge.locations import numbered
from harness.judge.stats.distance import bound_text

_AFTER = 8  # rows after the first that differs
_NAME, _SHAPE = 33, 16  # columns
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u"}
_LEGEND = "> first that differs   ! differs   ~ communication   - not compared"


def operations_text(compared: OperationsCompared) -> str:
    """The whole text: what observed the operations, the table, and the first difference in words."""
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
    """A line per row. Rows that cannot be compared are counted if there are several at a time, except communication."""
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
    """The name of the layer as a module."""
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
    """The first tensor by token, else the first, that an operation gives."""
    if side is None or not side.outputs:
        return ""
    return _form(next((one for one in side.outputs if one.features), side.outputs[0]))


def _form(tensor: TensorOfOperation) -> str:
    """Such as "46x1x64 f32"."""
    dtype = tensor.dtype
    letters, digits = dtype.rstrip("0123456789"), dtype[len(dtype.rstrip("0123456789")) :]
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return f"{shape} {_SHORT.get(letters, letters)}{digits}"


def _first(compared: OperationsCompared) -> Iterator[str]:
    """The first difference in words, with its inputs and outputs on both sides."""
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
    for side, one in (("cell", row.cell), (compared.reference, row.reference)):
        if one is None:
            yield f"  {side}: no such operation; compared with what it computed last"
            continue
        for what, tensors in (("takes", one.inputs), ("gives", one.outputs)):
            for tensor in tensors:
                yield f"  {side} {what} {_described(tensor)}"


def _described(tensor: TensorOfOperation) -> str:
    parts = [_form(tensor)]
    parts += [tensor.name] if tensor.name else []
    parts += [str(tensor.values)] if tensor.values is not None else []
    parts += [f"norm {tensor.norm:.6g}"] if tensor.norm is not None and tensor.values is None else []
    return ", ".join(parts)


def _origin(compared: OperationsCompared, row: OperationRow) -> str:
    """Whether the difference arises here or comes with the inputs."""
    before = compared.rows[: compared.first]
    if row.kind == "receives" and not any(one.off is not None for one in before):
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
