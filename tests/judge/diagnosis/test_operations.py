"""Operations of a cell on several ranks, written by hand, beside those of a control on one rank."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from harness.core.cell.layout import Coordinates
from harness.core.run.tensor_records import (
    Fingerprint,
    OperationKind,
    OperationSeen,
    OperationsSeen,
    TensorOfOperation,
)
from harness.core.tolerances import Bound
from harness.triage.operation_differences import (
    PARTIAL,
    SHARDS,
    WHOLE,
    OperationRow,
    OperationsCompared,
    compare_operations,
    operations_text,
)

BOUND = Bound(value=1e-4, origin="test")
WEIGHT = TensorOfOperation(shape=[8, 8], dtype="float32", norm=2.0, name="fc.weight")


def _tensor(features: int, **documents: tuple[float, float]) -> TensorOfOperation:
    """A tensor with (norm_sq, projection) of documents `d0`, `d1`, ..."""
    found = {
        int(name[1:]): Fingerprint(norm_sq=norm_sq, projections=[one, -one])
        for name, (norm_sq, one) in documents.items()
    }
    return TensorOfOperation(shape=[4, 1, features], dtype="float32", norm=1.0, features=features, documents=found)


def _seen(
    module: str,
    name: str,
    output: TensorOfOperation,
    *inputs: TensorOfOperation,
    kind: OperationKind = "operation",
    number: int = 0,
) -> OperationSeen:
    return OperationSeen(
        module=module, name=name, kind=kind, number=number, inputs=list(inputs), outputs=[output], text=""
    )


def _rank(number: int, *operations: OperationSeen, tp: int = 0, cp: int = 0) -> OperationsSeen:
    return OperationsSeen(
        rank=number,
        place=Coordinates(tp=tp, cp=cp, dp=0, pp=0),
        layer=2,
        mode="torch.utils._debug_mode.DebugMode",
        torch="2.15.0",
        micro_batches=1,
        operations=list(operations),
    )


def _compared(cell: Mapping[int, OperationsSeen] | OperationsSeen, control: OperationsSeen) -> OperationsCompared:
    ranks = {cell.rank: cell} if isinstance(cell, OperationsSeen) else cell
    return compare_operations(ranks, control, BOUND, "control")


def _row(compared: OperationsCompared, name: str) -> OperationRow:
    return next(row for row in compared.rows if row.name == name)


WHOLE_ROW = _tensor(8, d0=(4.0, 1.0), d1=(9.0, 2.0))
CONTROL = _rank(
    0,
    _seen("fc", "aten.mm", WHOLE_ROW, WHOLE_ROW, WEIGHT),
    _seen("fc", "aten.add", WHOLE_ROW, WHOLE_ROW),
)


def test_equal_operations_differ_nowhere_and_the_text_says_so() -> None:
    compared = _compared(CONTROL, CONTROL)
    assert compared.first is None
    assert [row.off and row.off.distance for row in compared.rows] == [0.0, 0.0]
    assert "no operation differs" in operations_text(compared)


def test_the_first_operation_that_differs_is_named_with_the_document_and_right_inputs() -> None:
    wrong = _tensor(8, d0=(4.0, 1.0), d1=(9.0, 3.0))
    cell = _rank(0, CONTROL.operations[0], _seen("fc", "aten.add", wrong, WHOLE_ROW))
    compared = _compared(cell, CONTROL)
    assert compared.first == 1
    found = compared.rows[1].off
    assert found is not None
    assert (found.document, found.held) == (1, WHOLE)
    assert found.distance == pytest.approx(1 / 3)
    text = operations_text(compared)
    assert "first difference: fc: aten.add" in text
    assert "document 1 is off by 0.333" in text
    assert "its inputs are right, so it arises here" in text


@pytest.mark.parametrize(
    ("one", "other", "held"),
    [
        (WHOLE_ROW, WHOLE_ROW, WHOLE),
        (_tensor(4, d0=(1.0, 3.0), d1=(4.0, 0.5)), _tensor(4, d0=(3.0, -2.0), d1=(5.0, 1.5)), SHARDS),
        (_tensor(8, d0=(7.0, 3.0), d1=(1.0, 0.5)), _tensor(8, d0=(5.0, -2.0), d1=(1.0, 1.5)), PARTIAL),
    ],
    ids=["whole", "shards", "partial-sums"],
)
def test_tp_ranks_hold_a_tensor_whole_or_shards_or_partial_sums(
    one: TensorOfOperation, other: TensorOfOperation, held: str
) -> None:
    cell = {
        0: _rank(0, _seen("fc", "aten.mm", one)),
        1: _rank(1, _seen("fc", "aten.mm", other), tp=1),
    }
    row = _row(_compared(cell, CONTROL), "aten.mm")
    assert row.off is not None
    assert (row.off.held, row.off.distance) == (held, 0.0)
    broken = replace(other, documents={**other.documents, 1: Fingerprint(norm_sq=25.0, projections=[6.0, 5.0])})
    cell[1] = _rank(1, _seen("fc", "aten.mm", broken), tp=1)
    assert _row(_compared(cell, CONTROL), "aten.mm").differs


def test_tokens_of_cp_ranks_add_up() -> None:
    first, second = _tensor(8, d0=(1.0, 0.25), d1=(9.0, 2.0)), _tensor(8, d0=(3.0, 0.75))
    cell = {
        0: _rank(0, _seen("fc", "aten.mm", first)),
        1: _rank(1, _seen("fc", "aten.mm", second), cp=1),
    }
    row = _row(_compared(cell, CONTROL), "aten.mm")
    assert row.off is not None
    assert row.off.distance == 0.0
    del cell[1]
    assert _row(_compared(cell, CONTROL), "aten.mm").differs


def test_a_document_that_the_cell_lacks_is_missing_and_an_operation_of_some_ranks_is_not_compared() -> None:
    cell = _rank(0, _seen("fc", "aten.mm", _tensor(8, d0=(4.0, 1.0))))
    row = _row(_compared(cell, CONTROL), "aten.mm")
    assert row.off is not None
    assert math.isinf(row.off.distance)
    assert "document 1 is missing" in operations_text(_compared(cell, CONTROL))
    ranks = {0: _rank(0, *CONTROL.operations), 1: _rank(1, CONTROL.operations[0], tp=1)}
    compared = _compared(ranks, CONTROL)
    assert [row.off is None for row in compared.rows] == [False, True]
    once = _rank(0, replace(CONTROL.operations[0], micro_batches=2), CONTROL.operations[1])
    once.micro_batches = 2
    assert [row.off is None for row in _compared(once, CONTROL).rows] == [False, True]


def test_communication_is_compared_with_what_the_control_computed_last() -> None:
    sums = _seen("fc", "c10d.allreduce_", WHOLE_ROW, kind="communication")
    cell = {
        0: _rank(0, CONTROL.operations[0], sums, CONTROL.operations[1]),
        1: _rank(1, CONTROL.operations[0], sums, CONTROL.operations[1], tp=1),
    }
    compared = _compared(cell, CONTROL)
    row = _row(compared, "c10d.allreduce_")
    assert compared.first is None
    assert row.reference is None
    assert row.off is not None
    assert "~c10d.allreduce_" in operations_text(compared)
    lost = replace(sums, outputs=[_tensor(8, d0=(4.0, 1.0), d1=(9.0, 1.0))])
    cell[1] = _rank(1, CONTROL.operations[0], lost, CONTROL.operations[1], tp=1)
    compared = _compared(cell, CONTROL)
    assert compared.first is not None
    assert compared.rows[compared.first].name == "c10d.allreduce_"
    assert "control: no such operation" in operations_text(compared)


def test_operations_of_one_side_only_keep_their_place() -> None:
    loop = [_seen("rope", "aten.cos", replace(WEIGHT, name=""), number=number) for number in range(3)]
    cell = _rank(0, CONTROL.operations[0], *loop, CONTROL.operations[1])
    control = _rank(0, CONTROL.operations[0], loop[0], CONTROL.operations[1])
    compared = _compared(cell, control)
    assert [row.name for row in compared.rows] == ["aten.mm", "aten.cos", "aten.cos", "aten.cos", "aten.add"]
    assert [row.reference is None for row in compared.rows] == [False, False, True, True, False]
    assert compared.first is None
    assert "3 operations not compared" in operations_text(compared)


def test_a_value_that_is_not_finite_differs_and_other_numbers_of_features_do_not() -> None:
    nan = _tensor(8, d0=(math.nan, 1.0), d1=(9.0, 2.0))
    assert _compared(_rank(0, _seen("fc", "aten.mm", nan)), CONTROL).first == 0
    wider = _tensor(16, d0=(9.0, 9.0), d1=(9.0, 9.0))
    assert _row(_compared(_rank(0, _seen("fc", "aten.mm", wider)), CONTROL), "aten.mm").off is None


def test_a_module_whose_output_differs_although_it_receives_the_right_values_holds_the_fault() -> None:
    received = _seen("core", "receives", WHOLE_ROW, kind="receives")
    right, wrong = (_seen("core", "returns", one, kind="returns") for one in (WHOLE_ROW, _tensor(8, d0=(1.0, 1.0))))
    text = operations_text(_compared(_rank(0, received, wrong), _rank(0, received, right)))
    assert "what the module receives is right, so it arises inside this module" in text


def test_no_line_is_longer_than_80_columns_but_the_details_below_the_table() -> None:
    long = "self_attention.linear_qkv_with_a_very_long_name_of_a_module"
    cell = _rank(0, *[_seen(long, f"aten.operation_with_a_long_name_{number}", WHOLE_ROW) for number in range(30)])
    lines = operations_text(_compared(cell, cell)).split("\n")
    assert len(lines) > 30
    assert max(map(len, lines)) <= 80


def test_a_cell_without_records_is_an_error() -> None:
    with pytest.raises(ValueError, match="the cell recorded no operation"):
        compare_operations({}, CONTROL, BOUND, "control")


def test_communication_is_not_compared_with_what_the_oracle_has_last() -> None:
    cell = _rank(0, CONTROL.operations[0], _seen("fc", "c10d.allreduce_", WHOLE_ROW, kind="communication"))
    compared = compare_operations({0: cell}, CONTROL, BOUND, "oracle")
    assert [row.off is None for row in compared.rows] == [False, True, True]
    assert "beside the oracle" in operations_text(compared)
