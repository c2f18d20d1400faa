"""Real training by a real agent: several cells in one agent process, where a broken cell does not affect the others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.judge.import_check import proofs_of
from tests.runtime.conftest import Ran, config, run_cells

pytestmark = pytest.mark.train


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    configs = {
        "hangs": config(tp=2, fault="rank-enters-a-collective-alone", deadline_s=10.0),
        "one rank": config("unpacked"),
        "raises": config(tp=2, fault="exception-at-step-1"),
        "killed": config(tp=2, fault="rank-killed-from-outside"),
        "sft": config("sft", tp=2, pp=2, cp=2),
        "interleaved": config(pp=2, vpp=2),
    }
    return run_cells(tmp_path_factory.mktemp("run"), configs)


@pytest.mark.parametrize("name", ["one rank", "sft", "interleaved"])
def test_a_good_cell_completes_beside_the_broken_ones(ran: dict[str, Ran], name: str) -> None:
    cell = ran[name]
    assert cell.result.status == "completed"
    assert len(cell.records) == cell.config.layout.world_size
    assert {record.ended for record in cell.records.values()} == {"completed"}
    assert all(len(record.steps) == 2 for record in cell.records.values())


def test_all_layouts_compute_the_loss_and_gradient_of_one_rank(ran: dict[str, Ran]) -> None:
    truth = ran["one rank"].records[0].steps
    for name in ("sft", "interleaved"):
        last = max(ran[name].records)
        for mine, expected in zip(ran[name].records[last].steps, truth):
            assert mine.token_count == expected.token_count
            assert mine.loss_sum == pytest.approx(expected.loss_sum, rel=1e-6)
            assert mine.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)


def test_a_raising_rank_leaves_its_traceback_and_is_named_first(ran: dict[str, Ran]) -> None:
    cell = ran["raises"]
    assert cell.result.status == "failed"
    first = cell.records[cell.result.first_failure_rank or 0]
    assert first.failure is not None
    assert first.ended == "raised"
    assert first.failure.traceback.startswith("Traceback")
    assert first.progress.step == 1
    assert len(first.batches) == len(cell.config.micro_batches(0)[0])  # the metadata leg is complete


def test_only_a_cell_that_completed_waits_for_the_oracle(ran: dict[str, Ran]) -> None:
    assert ran["raises"].records[0].steps
    assert {name for name in ran if (ran[name].root / "oracle.json").exists()} == {
        name for name in ran if all(record.ended == "completed" for record in ran[name].records.values())
    }


def test_a_hanging_rank_ends_at_the_deadline_and_the_collective_is_named(ran: dict[str, Ran]) -> None:
    cell = ran["hangs"]
    assert cell.result.status == "failed"
    assert {ending.ended for ending in cell.result.ranks} == {"deadline"}
    assert any(ending.hang for ending in cell.result.ranks)
    for rank in range(2):
        assert "most recent call first" in (cell.root / "log" / f"rank-{rank:05d}.log").read_text()


def test_a_killed_rank_is_distinguished_from_one_that_raised(ran: dict[str, Ran]) -> None:
    endings = {ending.rank: ending for ending in ran["killed"].result.ranks}
    assert -9 in {ending.exit_code for ending in endings.values()}
    assert "raised" not in {endings[rank].ended for rank in endings if endings[rank].exit_code == -9}


def test_no_rank_outlives_its_cell(ran: dict[str, Ran]) -> None:
    pids = [int(record.environment["pid"]) for cell in ran.values() for record in cell.records.values()]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_every_rank_proves_what_it_imported_and_lists_its_stubs(ran: dict[str, Ran]) -> None:
    record = ran["sft"].records[0]
    proofs = {proof.module: proof for proof in proofs_of(record)}
    assert proofs["megatron.core"].version
    assert proofs["megatron.core.utils"].path.endswith("utils.py")
    assert bool(record.cpu_stubs) == (record.environment["device"] == "cpu")


def test_an_agent_sets_the_number_of_threads_before_it_imports_torch() -> None:
    """With two threads in each of many processes on two cores an oracle took ten times as long."""
    asked = "import harness.runtime.agent, harness.runtime.agent_ahead, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
