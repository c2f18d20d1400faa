"""Which cells a local resume runs, and as which attempts, without training (with: tests/cli/test_interruption.py)."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign import judging, launch
from harness.campaign.judging import EnoughFailures, LiveJudging, RunFacts
from harness.campaign.local_run import _new_attempts, _without_result, resume, stopped, with_partners
from harness.campaign.options import RunOptions
from harness.core.errors import InputError, InterruptedRun
from harness.core.outcomes import EXIT_INTERRUPTED, EXIT_PASS, EXIT_UNDECIDED, Outcome
from harness.core.run.events import CellStarted, RunStopped, append_event, note
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.core.stack import Checkout, ReadyStack, Stack
from harness.infra.process import Stopped
from harness.launch.status import status_of
from harness.runs.evidence_files import newest, read_cell, read_plan
from harness.runs.lock import launcher_of, only_launcher
from tests.cli.runs import simulated_run
from tests.launch.stacks.test_checkout import repository


def in_turns(cell: PlannedCell, pair: str) -> PlannedCell:
    return replace(cell, config=replace(cell.config, timing=replace(cell.config.timing, turns=pair)))


def cells_of(run: RunDir) -> list[PlannedCell]:
    return list(read_plan(run).expansion.cells)


def test_only_cells_without_a_result_are_left(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    assert _without_result(run, plan) == set()
    victim = plan.expansion.cells[1].id
    run.attempt(victim).result.unlink()
    assert _without_result(run, plan) == {victim}


def test_an_attempt_that_began_gets_a_successor_and_is_no_retry(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    cell = cells_of(run)[1]
    run.attempt(cell.id).result.unlink()
    (run.attempt(cell.id).root / "log").mkdir()
    assert _new_attempts(run, [cell]) == {cell.id: 2}
    assert run.attempt(cell.id, 2).config.exists()
    assert newest(run, cell.id) == 2
    assert not read_cell(run, cell.id, {}).retried


def test_an_attempt_that_ended_as_error_is_a_retry(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    cell = cells_of(run)[1]
    assert _new_attempts(run, [cell]) == {cell.id: 2}
    assert read_cell(run, cell.id, {}).retried


def test_an_attempt_that_never_began_is_begun(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    cell = cells_of(run)[1]
    run.attempt(cell.id).result.unlink()
    assert _new_attempts(run, [cell]) == {cell.id: 1}


def test_cells_that_take_turns_run_again_together_in_attempts_of_one_number_without_gaps(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    alone, first, second = cells_of(run)
    first, second = in_turns(first, "pair"), in_turns(second, "pair")
    assert with_partners([alone, first, second], {first.id}) == {first.id, second.id}
    assert with_partners([alone, first, second], {alone.id}) == {alone.id}
    run.attempt(second.id).result.unlink()  # it never began
    assert _new_attempts(run, [first, second]) == {first.id: 2, second.id: 2}
    assert newest(run, second.id) == 2


def test_status_knows_whether_the_launcher_lives(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    run.attempt(plan.expansion.cells[0].id).result.unlink()
    assert launcher_of(run) is None
    assert "Launcher: ended; continue with: harness resume" in status_of(run, plan).text
    with only_launcher(run):
        assert (launcher_of(run) or "").startswith("pid ")
        assert "Launcher: pid " in status_of(run, plan).text
    assert launcher_of(run) is None


def test_a_run_whose_working_tree_has_moved_is_not_resumed(tmp_path: Path) -> None:
    run = simulated_run(tmp_path / "runs")
    source = repository(tmp_path / "source")
    checkout = Checkout(package="megatron-lm", repository=str(source), ref="")
    ready = ReadyStack(requested=Stack(name="mine", checkouts=(checkout,)), commits={"megatron-lm": "0" * 40})
    plan = replace(read_plan(run), stacks={"mine": ready})
    assert resume(run, plan, RunOptions(record=False), errors=False).code in (
        EXIT_PASS,
        EXIT_UNDECIDED,
    )  # it runs nothing
    run.attempt(plan.expansion.cells[1].id).result.unlink()
    with pytest.raises(InputError, match=r"stack mine: megatron-lm in .* changed from 0{40} to .*start a new run"):
        resume(run, plan, RunOptions(record=False), errors=False)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("finished", [True, False], ids=["all cells ended", "one is left"])
def test_after_a_signal_the_verdict_has_the_exit_code_of_the_process_and_the_message_says_what_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: str,
    finished: bool,
) -> None:
    run = simulated_run(tmp_path)
    result = run.attempt(read_plan(run).expansion.cells[1].id).result
    written = result.read_bytes()
    result.unlink()

    def stop_instead(*_: object) -> None:
        if finished:
            result.write_bytes(written)
        raise KeyboardInterrupt if number == "SIGINT" else Stopped(number)

    monkeypatch.setattr(launch, "launch", stop_instead)
    with pytest.raises(InterruptedRun) as ended:
        resume(run, read_plan(run), RunOptions(record=False), errors=False)
    assert ended.value.exit_code == EXIT_INTERRUPTED == 130
    said, message = capsys.readouterr().out, str(ended.value)
    assert "; exit code 130" in said
    assert "exit code 3" not in said
    assert message.startswith(
        f"ended by {number}: {'all 3 cells had ended and are' if finished else '2 of 3 cells are'}"
    )
    assert ("the others run with: harness resume" in message) is not finished
    assert ("record the run in the history" in message) is finished
    cells = {cell.id: cell for cell in judging.judge(run, read_plan(run)).cells}
    left = cells[result.parent.parent.name]
    assert (left.outcome, left.reason) == (
        (Outcome.PASS, "") if finished else (Outcome.NOT_RUN, f"the run was ended by {number}")
    )


def test_a_signal_while_the_run_is_judged_names_the_command_that_judges_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulated_run(tmp_path)

    def judge(*_: object) -> None:
        raise Stopped("SIGTERM")

    monkeypatch.setattr(judging, "judge", judge)
    with pytest.raises(InterruptedRun, match=r"^ended by SIGTERM while the run was judged; .* harness report "):
        resume(run, read_plan(run), RunOptions(record=False), errors=False)


@pytest.mark.parametrize("most", [1, None])
def test_maxfail_ends_a_run_at_the_first_failure_that_is_judged(tmp_path: Path, most: int | None) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    cells = [cell.id for cell in plan.expansion.controls_first]
    run.attempt(cells[1]).record(0).unlink()
    results = {cell: run.attempt(cell).result.read_bytes() for cell in cells}
    for cell in cells:
        run.attempt(cell).result.unlink()
    failed: list[str] = []
    live = LiveJudging(run, plan, lambda cell: failed.append(cell.id), most)
    for cell in reversed(cells):  # the control last: nothing can be judged before it
        run.attempt(cell).result.write_bytes(results[cell])
        assert failed == []
        with pytest.raises(EnoughFailures) if most and cell == cells[0] else nullcontext():
            live.ended(cell)
    assert failed == [cells[1]]


def test_each_cell_is_judged_once_without_reading_the_journal_of_the_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    cells = [cell.id for cell in plan.expansion.controls_first]
    results = {cell: run.attempt(cell).result.read_bytes() for cell in cells}
    for cell in cells:
        run.attempt(cell).result.unlink()
    judged: list[str] = []
    here = judging.judge_here

    def counted(run: RunDir, part: RunPlan, facts: RunFacts, today: str) -> object:
        judged.append(part.expansion.cells[0].id)
        return here(run, part, facts, today)

    monkeypatch.setattr(judging, "read_events", None)  # grows with the run: reading it for each cell is not linear
    monkeypatch.setattr(judging, "judge_here", counted)
    live = LiveJudging(run, plan, lambda cell: None)
    for cell in cells:
        run.attempt(cell).result.write_bytes(results[cell])
        live.ended(cell)
    assert sorted(judged) == sorted(cells)


def test_the_cells_that_maxfail_left_are_named(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    last = plan.expansion.cells[-1].id
    text = stopped(run, plan, {last}, 1)
    assert text.startswith("stopped after 1 failure (--maxfail): 1 of 3 cells did not run")
    assert "harness resume" in text


def test_the_cells_that_maxfail_left_are_not_run_until_they_are_started_again(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    control, ran, left = (cell.id for cell in plan.expansion.controls_first)
    shutil.rmtree(run.attempt(left).root / "ranks")
    run.attempt(left).result.unlink()
    assert {cell.id: cell.outcome for cell in judging.judge(run, plan).cells}[left] is Outcome.ERROR
    note(run.events, RunStopped(why="the run was stopped after 1 failure (--maxfail)", cells=(left,)))
    report = judging.judge(run, plan)
    found = {cell.id: cell for cell in report.cells}
    assert found[left].outcome is Outcome.NOT_RUN
    assert found[left].reason == "the run was stopped after 1 failure (--maxfail)"
    assert found[control].outcome is found[ran].outcome is Outcome.PASS
    assert (report.verdict, report.counts[Outcome.NOT_RUN]) == ("error", 1)
    append_event(run.events, CellStarted(time=99.0, cell=left, attempt=1, ranks=1))
    assert {cell.id: cell.outcome for cell in judging.judge(run, plan).cells}[left] is Outcome.ERROR


def test_cells_whose_control_was_not_run_are_not_run_either(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    control, *others = (cell.id for cell in plan.expansion.controls_first)
    shutil.rmtree(run.attempt(control).root / "ranks")
    run.attempt(control).result.unlink()
    note(run.events, RunStopped(why="stopped", cells=(control,)))
    found = {cell.id: cell for cell in judging.judge(run, plan).cells}
    assert {found[one].outcome for one in others} == {Outcome.NOT_RUN}
    assert f"its control, cell {control}, was not run" in {found[one].reason for one in others}
