from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from harness.core.errors import InfrastructureError
from harness.core.run.records import CellResult, RankEnding
from harness.core.run.run_dir import RunDir, write_json, write_new
from harness.core.run.run_plan import Allocation
from harness.core.serialization import loads
from harness.launch.slurm.follow import second_agents
from harness.runs.evidence_files import newest
from harness.runtime.coordination import job_start
from harness.runtime.coordination.job_start import work_order_of

NAME = "1n2r-0"
CELLS = ("done", "failed", "cut", "waits")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An allocation of four cells: one completed, one failed, one was terminated, one not started."""
    made = RunDir(tmp_path)
    cells = [{"cell": cell, "attempt": 1} for cell in CELLS]
    write_json(made.submission(NAME), {"cells": cells, "parallel_ranks": 2, "nodes": 1})
    for cell in CELLS:
        write_json(made.attempt(cell).config, {"of": cell})
    for cell, status, ended in (
        ("done", "completed", "completed"),
        ("failed", "failed", "raised"),
        ("cut", "error", "missing"),
    ):
        result = CellResult(cell=cell, attempt=1, status=status, ranks=[RankEnding(rank=0, ended=ended)])
        write_json(made.attempt(cell).result, result)
    return made


def start(job: str, restart: int = 0) -> dict[str, str]:
    return {"SLURM_JOB_ID": job, "SLURM_RESTART_COUNT": str(restart)}


def files(run: RunDir) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.root.rglob("*") if path.is_file()}


def test_the_first_start_runs_the_work_order_unchanged(run: RunDir) -> None:
    before = files(run)
    assert work_order_of(run, NAME, 0, start("7")) == NAME
    assert before.items() <= files(run).items()
    (claim,) = run.claims(NAME)
    assert (claim.job, claim.restart, claim.order) == ("7", 0, NAME)


def test_outside_a_job_nothing_is_claimed(run: RunDir) -> None:
    before = files(run)
    assert work_order_of(run, NAME, 0, {}) == NAME
    assert files(run) == before


def test_a_second_start_makes_new_attempts_of_the_cells_that_the_first_did_not_finish(run: RunDir) -> None:
    work_order_of(run, NAME, 0, start("7"))
    before = files(run)
    order = work_order_of(run, NAME, 0, start("7", 1))
    assert order == "1n2r-0.restart1"
    values = loads(run.submission(order).read_text())
    assert values == {
        "cells": [{"cell": "cut", "attempt": 2}, {"cell": "waits", "attempt": 2}],
        "parallel_ranks": 2,
        "nodes": 1,
    }
    assert before.items() <= files(run).items(), "what the first start wrote stays"
    assert [newest(run, cell) for cell in CELLS] == [1, 1, 2, 2]
    assert loads(run.attempt("waits", 2).config.read_text()) == {"of": "waits"}
    reason = loads(run.attempt("waits", 1).result.read_text())["reason"]
    assert reason == "Slurm started job 7 again (restart 1) before the cell ended"
    assert run.newest_order(NAME) == order


def test_a_third_start_continues_from_the_second(run: RunDir) -> None:
    for restart in (0, 1):
        work_order_of(run, NAME, 0, start("7", restart))
    write_json(run.attempt("cut", 2).result, CellResult(cell="cut", attempt=2, status="completed"))
    order = work_order_of(run, NAME, 0, start("7", 4))
    assert order is not None
    assert loads(run.submission(order).read_text())["cells"] == [{"cell": "waits", "attempt": 3}]


def test_the_number_of_an_existing_attempt_is_not_used_again(run: RunDir) -> None:
    work_order_of(run, NAME, 0, start("7"))
    run.attempt("waits", 2).root.mkdir()  # a retry that the launcher is about to submit
    order = work_order_of(run, NAME, 0, start("7", 1))
    assert order is not None
    cells = loads(run.submission(order).read_text())["cells"]
    assert {item["cell"]: item["attempt"] for item in cells} == {"cut": 2, "waits": 3}


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["write_work_order", "write_new"])
def test_a_start_that_follows_one_which_died_at_any_step_runs_the_unfinished_cells(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    work_order_of(run, NAME, 0, start("7"))

    def die(*arguments: object) -> bool:
        if arguments[0] == run.claim(NAME, 2):
            return write_new(*arguments)  # type: ignore[arg-type]
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(job_start, step, die)
        work_order_of(run, NAME, 0, start("7", 1))
    order = work_order_of(run, NAME, 0, start("7", 2))
    assert order is not None
    cells = loads(run.submission(order).read_text())["cells"]
    assert cells == [{"cell": "cut", "attempt": 3}, {"cell": "waits", "attempt": 3}]
    assert [newest(run, cell) for cell in CELLS] == [1, 1, 3, 3]


def test_a_start_goes_on_with_cells_that_a_start_whose_work_order_is_gone_has_closed(run: RunDir) -> None:
    work_order_of(run, NAME, 0, start("7"))
    second = work_order_of(run, NAME, 0, start("7", 1))
    assert second is not None
    run.submission(second).unlink()
    order = work_order_of(run, NAME, 0, start("7", 2))
    assert order is not None
    assert [item["cell"] for item in loads(run.submission(order).read_text())["cells"]] == ["cut", "waits"]


@pytest.mark.parametrize(
    ("job", "restart", "why"),
    [("8", 0, "job 7 has claimed"), ("7", 0, "restart 1 of job 7")],
)
def test_a_duplicate_and_an_earlier_start_write_only_why_they_did_not_run(
    run: RunDir, job: str, restart: int, why: str
) -> None:
    for earlier in (0, 1):
        work_order_of(run, NAME, 0, start("7", earlier))
    before = files(run)
    assert work_order_of(run, NAME, 0, start(job, restart)) is None
    after = files(run)
    assert before.items() <= after.items()
    (note,) = after.keys() - before.keys()
    assert Path(note).name == f"1n2r-0.refused-{job}-{restart}.json"
    assert why in loads(after[note].decode())["reason"]


def test_a_cancelled_run_starts_nothing(run: RunDir) -> None:
    write_json(run.cancelled, {})
    assert work_order_of(run, NAME, 0, start("7")) is None
    assert run.claims(NAME) == []


def test_only_one_of_many_jobs_that_start_at_once_runs(run: RunDir) -> None:
    jobs = [str(number) for number in range(16)]
    barrier = Barrier(len(jobs))

    def begin(job: str) -> str | None:
        barrier.wait()
        return work_order_of(run, NAME, 0, start(job))

    with ThreadPoolExecutor(len(jobs)) as pool:
        orders = list(pool.map(begin, jobs))
    (claim,) = run.claims(NAME)
    assert [job for job, order in zip(jobs, orders, strict=True) if order is not None] == [claim.job]
    assert len(list(run.root.glob("agents/*.refused-*"))) == len(jobs) - 1


def test_the_other_nodes_run_the_work_order_that_node_0_of_the_same_start_claimed(run: RunDir) -> None:
    assert work_order_of(run, NAME, 0, start("7")) == work_order_of(run, NAME, 1, start("7")) == NAME
    again = work_order_of(run, NAME, 0, start("7", 1))
    assert work_order_of(run, NAME, 1, start("7", 1)) == again
    work_order_of(run, NAME, 0, start("8"))
    assert work_order_of(run, NAME, 3, start("8")) is None
    with pytest.raises(InfrastructureError, match="has not claimed"):
        work_order_of(run, NAME, 1, start("9"), timeout_s=0.0)


def test_a_claim_that_cannot_be_read_cannot_be_taken(run: RunDir) -> None:
    run.claim(NAME, 1).parent.mkdir()
    run.claim(NAME, 1).write_text("{")
    with pytest.raises(InfrastructureError, match=r"claim-1\.json exists but cannot be read"):
        work_order_of(run, NAME, 0, start("7"), timeout_s=0.0)


def test_a_second_agent_of_a_node_ends_and_says_so_without_disturbing_the_first(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [work_order_of(run, NAME, node, start("7")) for node in (0, 1)] == [NAME, NAME]
    for node in (0, 1):
        assert work_order_of(run, NAME, node, start("7")) is None
        assert f"job 7 started a second agent on node {node}" in capsys.readouterr().out
    assert work_order_of(run, NAME, 2, start("7")) == NAME  # not told to end
    one = Allocation(name=NAME, cells=CELLS, nodes=3)
    assert [reason.split(" (")[0] for reason in second_agents(run, one)] == [
        f"job 7 started a second agent on node {node}" for node in (0, 1)
    ]


def test_of_many_agents_of_a_node_one_runs(run: RunDir) -> None:
    work_order_of(run, NAME, 0, start("7"))
    barrier = Barrier(16)

    def begin(_: int) -> str | None:
        barrier.wait()
        return work_order_of(run, NAME, 1, start("7"))

    with ThreadPoolExecutor(16) as pool:
        assert sorted(order or "" for order in pool.map(begin, range(16))) == [""] * 15 + [NAME]
