"""`checks.throughput` of a matrix: timing, bounds and errors."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.cell.timing import DOCUMENTS, NOT_TIMED, TimingConfig
from harness.core.run.run_plan import BaselineRequest
from harness.matrix.load import load, resolved
from tests.matrix.helpers import expand_axes, matrix_of, problems_of

MATRIX = {"packing": ["reference", "unpacked"]}


def of(**throughput: Any) -> Any:
    return matrix_of(matrix=MATRIX, checks={"throughput": throughput})


def test_nothing_is_timed_by_default() -> None:
    matrix = matrix_of(matrix=MATRIX)
    assert (matrix.timing, matrix.tolerances.throughput, matrix.base) == (NOT_TIMED, {}, "")
    assert of(segment_slope=False).timing == NOT_TIMED


def test_true_means_the_defaults() -> None:
    matrix = of(segment_slope=True, packed_slower=True)
    assert matrix.timing == TimingConfig(documents=DOCUMENTS, unpacked=True)
    assert matrix.tolerances.throughput == {"segment_slope": 1.25, "rotary_slope": 2.0, "packed_slower": 1.25}


def test_a_mapping_changes_the_defaults() -> None:
    matrix = of(segment_slope={"documents": [2, 8], "rotary_bound": 3}, rounds=11)
    assert matrix.timing == TimingConfig(documents=(2, 8), rounds=11)
    assert matrix.tolerances.throughput == {"segment_slope": 1.25, "rotary_slope": 3.0}


def test_warmup_pack_length_and_peak_can_be_set() -> None:
    slope = {"documents": [4, 1024], "tokens": 8192}
    matrix = of(segment_slope=slope, full_rows=True, warmup=5, peak_tflops={"bf16": 700})
    assert matrix.timing == TimingConfig(documents=(4, 1024), tokens=8192, full_rows=True, warmup=5)
    assert matrix.peak_tflops == {"bf16": 700.0}


def test_history_is_off_by_default() -> None:
    assert of(segment_slope=True).history is None
    assert of(history=True).history == BaselineRequest(runs=20)
    matrix = of(history={"runs": 10})
    assert matrix.history == BaselineRequest(runs=10)
    assert matrix.tolerances.throughput == {"slower_than_history": 1.15}
    assert matrix.timing == NOT_TIMED  # training steps are compared: no timing leg runs


def test_only_packed_cells_are_timed() -> None:
    cells = expand_axes(MATRIX, checks={"throughput": {"segment_slope": True}}).cells
    assert {cell.config.data_path: cell.config.timing.timed for cell in cells} == {"reference": True, "unpacked": False}


@pytest.mark.parametrize(
    "throughput",
    [
        {},
        {"segment_slope": True, "packed_slower": {"bound": 2.0}},
        {"slower_than": "default"},
        {"rounds": 21},
        {"full_rows": True, "warmup": 2, "peak_tflops": {"bf16": 989.5, "fp32": 67}},
        {"segment_slope": {"documents": [4, 1024], "tokens": 8192}},
        {"history": True},
        {"history": {"slower": 1.3, "since": "2026-08-01"}},
    ],
)
def test_the_resolved_matrix_times_the_same(throughput: dict[str, Any]) -> None:
    matrix = of(**throughput)
    again = load(resolved(matrix), file="t.yaml", lines={}, read_lengths=lambda path: ())
    assert (again.timing, again.tolerances, again.base) == (matrix.timing, matrix.tolerances, matrix.base)
    assert (again.history, again.peak_tflops) == (matrix.history, matrix.peak_tflops)


@pytest.mark.parametrize(
    ("throughput", "key", "message"),
    [
        ({"segment_slop": True}, "segment_slop", "unknown key"),
        ({"segment_slope": {"documents": [4, 6]}}, "segment_slope.documents", "each must divide the last one, 6"),
        (
            {"segment_slope": {"documents": [16, 4]}},
            "segment_slope.documents",
            "must be in ascending order, without duplicates",
        ),
        ({"packed_slower": {"bound": 1}}, "packed_slower.bound", "must be above 1.0"),
        ({"rounds": 3}, "rounds", "must be at least 7"),
        ({"warmup": 0}, "warmup", "must be at least 1"),
        ({"peak_tflops": {"fp8": 1}}, "peak_tflops", "fp8 is not a dtype of cells; allowed: bf16, fp32"),
        ({"peak_tflops": {"bf16": 0}}, "peak_tflops.bf16", "must be above 0.0"),
        ({"history": {"runs": 3}}, "history.runs", "must be at least 5"),
        ({"history": {"since": "last week"}}, "history.since", "must be a date like 2026-08-01, in quotes"),
    ],
)
def test_errors_are_reported_at_their_key(throughput: dict[str, Any], key: str, message: str) -> None:
    (problem,) = problems_of(matrix=MATRIX, checks={"throughput": throughput})
    assert problem.key == f"checks.throughput.{key}"
    assert problem.message == message
