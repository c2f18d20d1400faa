from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import DiskFullError
from harness.core.run.run_dir import RunDir
from harness.core.serialization import from_jsonable, loads
from harness.node.coordination import heartbeat as module
from harness.node.coordination import rendezvous
from harness.node.coordination.heartbeat import Heart
from harness.node.coordination.rendezvous import Beat, Heartbeats, heartbeat_file, read


def beat_of(path: Path) -> Beat:
    return from_jsonable(Beat, loads(path.read_text()))


def until(condition: Callable[[], bool], path: Path) -> None:
    """Reads the file again and again, for as long as pytest lets the test run."""
    while not condition():
        os.sched_yield()
        assert path.exists()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_agent_that_is_busy_importing_goes_on_beating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    heart = Heart(tmp_path / "beat", "token")
    heart.begin("loading")
    first = beat_of(heart.path)
    until(lambda: beat_of(heart.path).time > first.time, heart.path)  # this process does nothing else meanwhile
    assert (beat_of(heart.path).state, beat_of(heart.path).pid) == ("loading", os.getpid())
    heart.turn()
    until(lambda: beat_of(heart.path).state == "ready", heart.path)
    heart.end()
    last = beat_of(heart.path)
    assert last.state == "ended"
    assert beat_of(heart.path) == last  # nobody writes any more
    assert heart._process is not None
    assert not heart._process.is_alive()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_agent_whose_main_loop_stands_still_for_long_falls_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_S", 0.0)
    monkeypatch.setattr(module, "STUCK_S", 0.2)
    heart = Heart(tmp_path / "beat", "token")
    heart.begin("ready")
    assert heart._process is not None
    heart._process.join()
    assert heart._process.exitcode == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_disk_that_is_full_for_the_heartbeat_ends_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = os.getpid()

    def full(path: Path, value: object) -> None:
        if os.getpid() != agent:
            raise DiskFullError(f"cannot write {path}")

    monkeypatch.setattr(module, "BEAT_S", 0.0)
    monkeypatch.setattr(module, "write_json", full)
    heart = Heart(tmp_path / "beat", "token")
    heart.begin("ready")
    assert heart._process is not None
    heart._process.join()
    with pytest.raises(DiskFullError, match="no room"):
        heart.turn()


class Clock:
    """Stands for the time module."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rendezvous, "time", clock)
    return clock


def test_a_stall_of_ones_own_is_not_taken_for_the_silence_of_others(tmp_path: Path, clock: Clock) -> None:
    run = RunDir(tmp_path)
    others = Heartbeats(run, "local", [1, 2], silence_s=30.0)
    clock.now = 600.0  # this process imported, or the shared file system stood still for everybody
    assert others.silent() == []
    for _ in range(9):
        clock.now += 3.0
        assert others.silent() == []
    clock.now += 3.0
    assert others.silent() == [1, 2]


def test_many_heartbeats_cost_one_listing_of_their_folder_per_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    others = Heartbeats(run, "local", range(1, 16))
    for node in range(1, 16):
        Heart(heartbeat_file(run, "local", node), "token").end()
    listed: list[Path] = []
    original = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: listed.append(folder) or original(folder))
    assert len(others.beats()) == 15
    assert listed == [tmp_path / "agents"]
    assert read(Beat, heartbeat_file(run, "local", 3)) == others.beats()[3]
