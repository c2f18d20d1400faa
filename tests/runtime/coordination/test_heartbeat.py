from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import DiskFullError
from harness.core.run.run_dir import RunDir
from harness.core.serialization import from_jsonable, loads
from harness.runtime.coordination import rendezvous
from harness.runtime.coordination import rendezvous as module
from harness.runtime.coordination.rendezvous import Heartbeat, HeartbeatMonitor, HeartbeatWriter, heartbeat_file, read


def heartbeat_of(path: Path) -> Heartbeat:
    return from_jsonable(Heartbeat, loads(path.read_text()))


def until(condition: Callable[[], bool], path: Path) -> None:
    """Poll until the condition on the file holds; pytest's time-out ends the test."""
    while not condition():
        os.sched_yield()
        assert path.exists()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_agent_that_is_busy_importing_keeps_its_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.01)
    writer = HeartbeatWriter(tmp_path / "beat", "token")
    writer.start("loading")
    first = heartbeat_of(writer.path)
    until(lambda: heartbeat_of(writer.path).time > first.time, writer.path)  # while this process does nothing
    assert (heartbeat_of(writer.path).state, heartbeat_of(writer.path).pid) == ("loading", os.getpid())
    writer.tick()
    until(lambda: heartbeat_of(writer.path).state == "ready", writer.path)
    writer.stop()
    last = heartbeat_of(writer.path)
    assert last.state == "ended"
    assert heartbeat_of(writer.path) == last  # nothing writes it any more
    assert writer._process is not None
    assert not writer._process.is_alive()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_agent_whose_main_loop_hangs_for_long_stops_its_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(module, "STUCK_S", 0.2)
    writer = HeartbeatWriter(tmp_path / "beat", "token")
    writer.start("ready")
    assert writer._process is not None
    writer._process.join()
    assert writer._process.exitcode == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_agent_ends_when_the_disk_is_full_for_its_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = os.getpid()

    def full(path: Path, value: object) -> None:
        if os.getpid() != agent:
            raise DiskFullError(f"cannot write {path}")

    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    monkeypatch.setattr(module, "write_json", full)
    writer = HeartbeatWriter(tmp_path / "beat", "token")
    writer.start("ready")
    assert writer._process is not None
    writer._process.join()
    with pytest.raises(DiskFullError, match="no space left"):
        writer.tick()


class Clock:
    """A fake of the time module."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rendezvous, "time", clock)
    return clock


def test_a_gap_in_polling_does_not_count_as_silence_of_the_others(tmp_path: Path, clock: Clock) -> None:
    run = RunDir(tmp_path)
    others = HeartbeatMonitor(run, "local", [1, 2], silence_s=30.0)
    clock.now = 600.0  # slow imports in this process, or a hung file system
    assert others.silent() == []
    for _ in range(9):
        clock.now += 3.0
        assert others.silent() == []
    clock.now += 3.0
    assert others.silent() == [1, 2]


def test_many_heartbeats_cost_one_listing_of_their_folder_per_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    others = HeartbeatMonitor(run, "local", range(1, 16))
    for node in range(1, 16):
        HeartbeatWriter(heartbeat_file(run, "local", node), "token").stop()
    listed: list[Path] = []
    original = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: listed.append(folder) or original(folder))
    assert len(others.latest()) == 15
    assert listed == [tmp_path / "agents"]
    assert read(Heartbeat, heartbeat_file(run, "local", 3)) == others.latest()[3]
