from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.core.run.records import CellResult, RankEnding
from harness.core.run.run_dir import RunDir, write_json
from harness.infra import screen
from harness.runs.logs import (
    MARGIN,
    MAX_JOB_LOGS,
    PIECE_CHARACTERS,
    TAIL_BYTES,
    TAIL_LINES,
    cell_logs_text,
    job_logs_text,
    rank_log,
    tail,
)
from tests.hostile import commands_in


def _attempt(run: RunDir, number: int, *endings: str, first: int | None = None) -> None:
    """Write an attempt of cell `one` whose ranks ended as given; each log has 100 lines."""
    attempt = run.attempt("one", number)
    attempt.log(0).parent.mkdir(parents=True)
    for rank in range(len(endings)):
        attempt.log(rank).write_text("".join(f"try {number} rank {rank} line {line}\n" for line in range(100)))
    status = "failed" if set(endings) - {"completed"} else "completed"
    ranks = [RankEnding(rank=rank, ended=how) for rank, how in enumerate(endings)]
    result = CellResult(cell="one", attempt=number, status=status, ranks=ranks, first_failure_rank=first)
    write_json(attempt.result, result)


def test_the_newest_attempt_is_shown_with_the_first_failing_rank_first(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "raised", "completed")
    _attempt(run, 2, "killed", "completed", "raised", first=2)
    text = cell_logs_text(run, "one")
    assert text.startswith("one, attempt 2: failed")
    assert "try 1" not in text
    assert text.index("rank-00002.log (raised)") < text.index("rank-00000.log (killed)")
    assert "try 2 rank 2 line 99" in text
    assert f"try 2 rank 2 line {100 - TAIL_LINES}\n" in text
    assert f"try 2 rank 2 line {99 - TAIL_LINES}\n" not in text
    assert "try 2 rank 1" not in text  # it completed, so its log is only listed
    assert text.endswith("rank-00001.log  (completed)")


def test_the_logs_of_a_cell_that_passed_or_runs_are_all_shown(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "completed", "completed")
    assert {"try 1 rank 0 line 99", "try 1 rank 1 line 99"} <= set(cell_logs_text(run, "one").splitlines())
    run.attempt("one").result.unlink()
    text = cell_logs_text(run, "one")
    assert "has not ended" in text
    assert "try 1 rank 1 line 99" in text


def test_one_rank_is_shown_whole_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "completed", "raised")
    text = "".join(rank_log(run, "one", 0))
    assert text.count("try 1 rank 0") == 100
    assert "rank 1" not in text
    with pytest.raises(InputError, match=r"no log of rank 2 .*allowed: 0, 1"):
        rank_log(run, "one", 2)
    with pytest.raises(InputError, match="has not started"):
        rank_log(run, "never", 0)


def test_the_supervisors_log_is_shown_unless_empty(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "missing")
    log = run.attempt("one").log(0).with_name("supervisor-1.log")
    log.write_text("")
    assert "supervisor-1.log" not in cell_logs_text(run, "one")
    log.write_text("no room for ranks\n")
    assert "supervisor-1.log <==\nno room for ranks" in cell_logs_text(run, "one")


def test_logs_cannot_control_the_terminal(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "raised")
    run.attempt("one").log(0).write_text("a\tb \x1b]0;title\x07 \x9b2J\n")
    shown = io.StringIO()
    screen.out(cell_logs_text(run, "one"), shown)
    assert shown.getvalue().endswith("a\tb \\x1b]0;title\\x07 \\x9b2J\n")


def test_a_log_that_is_shown_whole_is_read_in_pieces_that_do_not_cut_lines(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "raised")
    written = "".join(f"line {number} of many\n" for number in range(20_000))
    run.attempt("one").log(0).write_text(written)
    head, *pieces = rank_log(run, "one", 0)
    assert "".join(pieces) == written
    assert max(map(len, pieces)) <= 2 * PIECE_CHARACTERS
    assert all(piece.endswith("\n") for piece in pieces if piece)
    assert head.startswith("==> ")


def test_job_logs_are_shown_by_their_ends_newest_last_and_empty_ones_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "submissions"
    folder.mkdir()
    assert "no job has written a log yet" in job_logs_text(RunDir(tmp_path))
    for number in range(MAX_JOB_LOGS + 1):
        path = folder / f"job-{number:02d}.out"
        path.write_text(f"says job {number}\n")
        os.utime(path, (1000 - number, 1000 - number))
    (folder / "job-00.err").write_text("")
    (folder / "job-00.sbatch").write_text("not a log")
    text = job_logs_text(RunDir(tmp_path))
    assert text.index("says job 9\n") < text.index("says job 0\n")
    assert f"says job {MAX_JOB_LOGS}\n" not in text  # the oldest
    assert text.endswith(f"job-00.err  (empty)\n{folder}/job-{MAX_JOB_LOGS}.out  (not shown)")
    assert "sbatch" not in text


def test_of_a_large_log_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.log"
    path.write_bytes(b"x" * 2 * TAIL_BYTES)
    assert tail(path) == "... " + "x" * TAIL_BYTES
    path.write_bytes(b"first\nlast \xff word\n")
    assert tail(path, 1) == "last \ufffd word"


def shown_of_rank(run: RunDir) -> str:
    """What `harness logs RUN one --rank 0` prints in a CI job."""
    stream = io.StringIO()
    for piece in rank_log(run, "one", 0):
        screen.out(piece, stream, end="")
    return stream.getvalue()


SECRET = "correct-horse-battery-staple"
PLACES = [PIECE_CHARACTERS, PIECE_CHARACTERS - MARGIN, TAIL_BYTES, TAIL_BYTES + MARGIN]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "text", [f"DB_PASSWORD={SECRET}", SECRET, "\n::stop-commands::pwn", "##[error]pwn", "##vso[x]"]
)
@pytest.mark.parametrize("fill", ["A", "A A\n"])
def test_no_secret_and_no_command_gets_through_at_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int, text: str, fill: str
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("OTHER_PASSWORD", SECRET)
    run = RunDir(tmp_path)
    _attempt(run, 1, "raised")
    log = run.attempt("one").log(0)
    for shift in (-len(text), -len(text) // 2, -1, 0):
        before = (fill * place)[: place + shift]
        log.write_text(f"{before}{text} {'z' * (place - len(text) - 1)}")
        tailed = io.StringIO()
        screen.out(tail(log), tailed)
        for shown in (shown_of_rank(run), tailed.getvalue()):
            assert commands_in(shown) == []
            assert not [part for part in ("horse", "battery", "staple") if part in shown]


def test_a_long_line_is_cut_with_a_note_and_the_next_is_shown(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "raised")
    run.attempt("one").log(0).write_text("x" * 5 * PIECE_CHARACTERS + "\nnext\n")
    _, text = "".join(rank_log(run, "one", 0)).split(" <==\n")
    assert text == "x" * (PIECE_CHARACTERS - MARGIN) + " ... (a longer line)\nnext\n"


@pytest.mark.parametrize("lines", [1, 700, 1024 - 20, 1024 - 1])
def test_no_part_of_a_private_key_is_shown(tmp_path: Path, lines: int) -> None:
    run = RunDir(tmp_path)
    _attempt(run, 1, "raised")
    key = ["-----BEGIN RSA PRIVATE KEY-----", *(f"MIIE{number:060}" for number in range(50))]
    text = "".join(f"{line}\n" for line in [*("x" * 63 for _ in range(lines)), *key, "-----END RSA PRIVATE KEY-----"])
    for after in range(0, 600, 60):
        run.attempt("one").log(0).write_text(text + "y\n" * after * 20)
        shown = io.StringIO()
        screen.out(tail(run.attempt("one").log(0), 10**6), shown)
        assert "MIIE" not in shown_of_rank(run) + shown.getvalue()


def test_logs_of_odd_names_are_left_out_and_unreadable_ones_give_the_reason(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    _attempt(run, 1, "raised", "raised", "raised")
    folder = run.attempt("one").log(0).parent
    for name in ("rank-abc.log", "rank-\u00b23.log", "rank--1.log", "rank- 7.log"):
        (folder / name).write_text("another log")
    run.attempt("one").log(1).unlink()
    os.mkfifo(run.attempt("one").log(1))
    run.attempt("one").log(2).unlink()
    run.attempt("one").log(2).mkdir()
    text = cell_logs_text(run, "one")
    assert "try 1 rank 0 line 99" in text
    assert "rank-00001.log (raised) <==\ncannot be read: not a regular file" in text
    assert "rank-00002.log (raised) <==\ncannot be read: Is a directory" in text
    assert "another log" not in text
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        rank_log(run, "one", 2)
    jobs = run.root / "submissions"
    jobs.mkdir()
    os.mkfifo(jobs / "a.log")
    os.mkfifo(jobs / "b.log")
    (jobs / "c.log").mkdir()
    (jobs / "d.log").write_text("says job\n")
    text = job_logs_text(run)
    assert "says job" in text
    assert [text.count(reason) for reason in ("not a regular file", "Is a directory")] == [2, 1]
