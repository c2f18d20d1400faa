from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.run.run_dir import AttemptDir, write_json
from harness.runtime.coordination import rendezvous
from harness.runtime.coordination.rendezvous import HEARTBEAT_S, Abort, Rendezvous, await_rendezvous, rendezvous_file


class Clock:
    """A fake of the time module."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, list[float]()

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rendezvous, "time", clock)
    return clock


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were listed, in order."""
    found: list[Path] = []
    original = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        found.append(folder)
        return original(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    return found


def test_a_node_that_waits_for_node_0_lists_the_folder_once_per_poll_and_ever_more_rarely(
    tmp_path: Path, clock: Clock, listed: list[Path]
) -> None:
    assert await_rendezvous(AttemptDir(tmp_path), until=600.0) is None
    assert len(listed) == len(clock.pauses) < 600 / HEARTBEAT_S + 20
    assert clock.pauses == sorted(clock.pauses)
    assert (clock.pauses[0], clock.pauses[-1]) == (0.02, HEARTBEAT_S)


def test_the_wait_ends_with_the_address_or_an_abort(tmp_path: Path, clock: Clock) -> None:
    attempt = AttemptDir(tmp_path / "announced")
    there = Rendezvous(addresses=["10.0.0.1"], port=4000)
    write_json(rendezvous_file(attempt), there)
    assert await_rendezvous(attempt, until=1.0) == there
    other = AttemptDir(tmp_path / "aborted")
    other.root.mkdir()
    rendezvous.write_abort(other, Abort(node=0, reason="it failed"))
    assert await_rendezvous(other, until=1.0) is None
    assert clock.pauses == []
