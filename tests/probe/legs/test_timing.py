"""Real cells on the CPU: one that runs out of memory, one that is timed after it, one that the CPU cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import ROUNDS, TimingConfig
from harness.judge.failures.classification import memory_text, out_of_memory
from tests.runtime.conftest import Ran, config, run_cells

pytestmark = pytest.mark.train

TIMING = TimingConfig(documents=(2, 4), unpacked=True, full_rows=True, warmup=2)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Cells that ran one after the other, in this order."""
    cells = {
        "too large": config(fault="rotary-table-of-garbage-length"),
        # A distant deadline: rounds that would take too large a share of it are left out.
        "timed": replace(config(deadline_s=900.0), timing=TIMING, fingerprints=False),
        "fused": replace(config(), model=ModelConfig(rope_fusion=True)),
    }
    return run_cells(tmp_path_factory.mktemp("timing"), cells, parallel_ranks=1)


def test_a_load_that_runs_out_of_memory_is_reported_with_its_request_and_peak(ran: dict[str, Ran]) -> None:
    record = ran["too large"].records[0]
    assert ran["too large"].result.status == "failed"
    assert (record.ended, record.progress.step) == ("raised", 1)
    assert out_of_memory(record.failure)
    text = memory_text(record)
    assert text.startswith("tried to allocate ")
    assert "; peak " in text
    limit, peak = int(record.environment["memory_limit_bytes"]), record.peak_memory_bytes
    assert 0 < peak < limit
    assert record.peak_reserved_bytes is None


def test_the_next_cell_runs_and_is_timed(ran: dict[str, Ran]) -> None:
    record = ran["timed"].records[0]
    assert ran["timed"].result.status == "completed"
    assert record.warmup_rounds == 2
    passes = [("packed", 0), ("unpacked", 0), ("full", 0)]
    loads = [*passes, *((part, documents) for part in ("rotary", "step") for documents in (2, 4))]
    seen = {(item.load, item.documents, item.round) for item in record.timings}
    assert seen == {(*load, number) for load in loads for number in range(ROUNDS)}
    assert all(item.seconds > 0 for item in record.timings)
    assert record.untimed.keys() == {"rotary_other"}
    assert record.gpu_states == []


def test_a_cell_without_fingerprints_still_has_losses_and_norms(ran: dict[str, Ran]) -> None:
    record = ran["timed"].records[0]
    assert (record.parameters, record.activations) == ([], [])
    assert all(step.grad_norm and step.documents for step in record.steps)


def test_a_cell_with_fused_kernels_is_an_error_without_a_gpu(ran: dict[str, Ran]) -> None:
    result = ran["fused"].result
    assert (result.status, ran["fused"].records) == ("error", {})
    assert "the ranks compute on the CPU" in result.reason
