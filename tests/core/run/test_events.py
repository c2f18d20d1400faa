"""Lines of journals, and events in them."""

from __future__ import annotations

import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.run.events import (
    CellFinished,
    Duplicate,
    Event,
    Finished,
    JobEnded,
    Journal,
    Launched,
    Retry,
    Started,
    append_event,
    append_line,
    read_events,
    read_lines,
    to_line,
)
from harness.core.run.run_plan import Allocation


@contextmanager
def no_room_above_100_bytes() -> Iterator[None]:
    """A write beyond byte 100 of a file writes what fits and then fails, as on a full disk, but with another errno.

    This holds for every file, and pytest's output may be one too, so only the write belongs inside.
    """
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_does_not_fit_leaves_the_lines_before_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_line(path, {"event": "first"})
    with pytest.raises(OSError, match="File too large"), no_room_above_100_bytes():
        append_line(path, {"event": "x" * 200})
    append_line(path, {"event": "second"})
    assert path.read_text() == '{"event": "first"}\n{"event": "second"}\n'


@pytest.mark.parametrize("whole", ["", '{"event": "first"}\n'])
def test_half_a_line_of_a_killed_writer_is_cut_off(tmp_path: Path, whole: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(whole + '{"event": "ha')
    append_line(path, {"event": "second"})
    assert path.read_text() == whole + '{"event": "second"}\n'
    assert read_lines(path)[-1] == {"event": "second"}


EVENTS: list[Event] = [
    Started(time=1.5, pid=7),
    CellFinished(time=2.0, cell="a", attempt=1, status="completed"),
    CellFinished(time=2.0, cell="a", attempt=1, exit_code=0),
    Duplicate(time=3.0, name="run.1n1r", job="8", kept=None),
    Retry(time=4.0, why="lost", allocation=Allocation(name="1n1r-0-again2", cells=("a",), array="1n1r-0-again2")),
    Launched(time=5.0, timing={"launch_s": 2.5}),
]


def test_events_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for event in EVENTS:
        append_event(path, event)
    assert read_events(path) == EVENTS


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (EVENTS[0], {"time": 1.5, "event": "started", "pid": 7}),
        (EVENTS[1], {"time": 2.0, "event": "cell_finished", "cell": "a", "attempt": 1, "status": "completed"}),
        (EVENTS[2], {"time": 2.0, "event": "cell_finished", "cell": "a", "attempt": 1, "exit_code": 0}),
        (EVENTS[3], {"time": 3.0, "event": "duplicate", "name": "run.1n1r", "job": "8", "kept": None}),
        (Finished(time=6.0), {"time": 6.0, "event": "finished"}),
    ],
)
def test_a_line_holds_time_kind_and_the_fields_that_apply(event: Event, line: dict[str, object]) -> None:
    assert list(to_line(event).items()) == list(line.items())


@pytest.mark.parametrize(
    "line",
    [
        '{"time": 1.0, "event": "invented"}',
        '{"time": 1.0, "event": 3}',
        '{"time": 1.0, "event": "job_ended", "job": "7"}',
        '{"time": "now", "event": "finished"}',
        '{"time": 1.0, "event": "finished", "more": 1}',
        '{"event": "launched", "timing": {"launch_s": null}}',
        "[]",
        "\x00",
    ],
)
def test_a_line_that_is_no_event_is_skipped(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f"{line}\n")
    append_event(path, Finished(time=1.0))
    assert read_events(path) == [Finished(time=1.0)]


def test_an_event_of_an_earlier_version_without_words_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_line(path, {"event": "job_ended", "allocation": "a-0", "array": "a", "job": "7", "state": "FAILED"})
    assert read_events(path) == [JobEnded(allocation="a-0", array="a", job="7", state="FAILED")]


def test_a_reader_continues_where_it_stopped_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path)
    assert list(journal.new_events()) == []
    append_event(path, EVENTS[0])
    with path.open("a") as stream:
        stream.write('{"time": 1.0, "event": "fini')
    assert list(journal.new_events()) == [EVENTS[0]]
    with path.open("a") as stream:
        stream.write('shed"}\n')
    assert list(journal.new_events()) == [Finished(time=1.0)]


@given(data=st.data(), events=st.lists(st.sampled_from(EVENTS), max_size=6))
def test_any_beginning_of_a_journal_holds_its_whole_lines_and_can_be_continued(
    data: st.DataObject, events: list[Event]
) -> None:
    """A writer may die after any byte. A reader that has read so far then gets each later event once."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        for event in events:
            append_event(path, event)
        whole = path.read_bytes() if events else b""
        cut = whole[: data.draw(st.integers(0, len(whole)))]
        path.write_bytes(cut)
        kept = events[: cut.count(b"\n")]
        journal = Journal(path)
        assert list(journal.new_events()) == kept
        append_event(path, EVENTS[0])
        assert list(journal.new_events()) == [EVENTS[0]]
        assert read_events(path) == [*kept, EVENTS[0]]
