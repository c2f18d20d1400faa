"""`harness logs --errors`, `logs -f`, and the lines that both leave out."""

from __future__ import annotations

from pathlib import Path

from harness.core.run.events import CellFinished, CellStarted, note
from harness.core.run.records import CellResult, RankEnding
from harness.core.run.run_dir import RunDir, write_json
from harness.runs.lock import only_launcher
from harness.runs.logs import errors_text, follow_logs, traceback_in, without_noise

RAISED = """\
before
Traceback (most recent call last):
  File "a.py", line 1, in f
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in g
ValueError: of two
lines
nanobind: leaked 514 functions!
"""


def _ended(run: RunDir, cell: str, status: str, *ranks: str, first: int | None = None) -> None:
    endings = [RankEnding(rank=rank, ended=how) for rank, how in enumerate(ranks)]
    result = CellResult(cell=cell, attempt=1, status=status, ranks=endings, first_failure_rank=first)
    write_json(run.attempt(cell).result, result)


def _log(run: RunDir, cell: str, rank: int, text: str) -> Path:
    path = run.attempt(cell).log(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_the_error_of_a_cell_is_the_traceback_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _log(run, "one", 0, RAISED.replace("of two", "of rank 0"))
    path = _log(run, "one", 1, RAISED)
    _ended(run, "one", "failed", "raised", "raised", first=1)
    _ended(run, "two", "completed", "completed")
    (text,) = errors_text(run, ["one", "two"])
    assert text.splitlines()[:3] == ["one: failed", f"==> {path} (rank 1) <==", "Traceback (most recent call last):"]
    assert "KeyError: 1" in text and text.endswith("ValueError: of two\nlines\n")
    assert "before" not in text and "rank 0" not in text


def test_a_run_without_errors_says_so(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _ended(run, "two", "completed", "completed")
    assert "every cell that has ended ran to its end" in "".join(errors_text(run, ["two", "open"]))


def test_a_cell_without_a_traceback_names_its_logs(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _log(run, "one", 0, "killed\n")
    _ended(run, "one", "failed", "killed", first=0)
    assert f"harness logs {tmp_path} one" in "".join(errors_text(run, ["one"]))


def test_only_the_last_of_separate_tracebacks_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(RAISED.replace("During handling of the above exception, another exception occurred:", "later"))
    assert traceback_in(log).startswith('Traceback (most recent call last):\n  File "b.py"')


def test_lines_of_other_packages_are_left_out_and_nothing_else() -> None:
    kept = "a\n  - leaked nothing\nnanobind: something else\n"
    noise = 'nanobind: leaked 514 functions!\n - leaked function "f"\n - ... skipped remainder\n'
    assert without_noise(kept + noise) == kept


def test_following_ends_with_the_run_and_misses_no_line(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    log = _log(run, "one", 0, "first\nhalf")
    pauses: list[float] = []

    def go_on(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 1:
            log.write_text("first\nhalf a line\nnanobind: leaked 5 types!\n")
            note(run.events, CellStarted(cell="one", attempt=1, ranks=1))
        else:
            log.write_text(log.read_text() + "last\n")
            note(run.events, CellFinished(cell="one", attempt=1, status="completed"))
            _ended(run, "one", "completed", "completed")

    with only_launcher(run):
        lines = list(follow_logs(run, ["one"], whole=False, pause=go_on))
    assert lines == ["rank 0 | first", "rank 0 | half a line", "rank 0 | last"]
    assert list(follow_logs(run, ["one"], whole=True, pause=go_on)) == ["started one", "ended   one: completed"]
    assert len(pauses) == 2
