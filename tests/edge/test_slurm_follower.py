"""How jobs are followed, without Slurm."""

from __future__ import annotations

from pathlib import Path

from harness.edge.run_dir import RunDir, append_line
from harness.edge.slurm_follower import Follower
from harness.edge.slurm_state import SlurmClient
from harness.words.run_plan import Allocation


class Silent(SlurmClient):
    """A Slurm that cannot be asked, and a test that does not wait for ever."""

    def _call(self, argv: list[str]) -> str | None:
        self.calls += 1
        assert self.calls < 6, "a job is followed for too long"
        return None


def test_a_job_that_ended_is_told_of_while_the_others_go_on_and_more_may_be_added(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    short, long, again = (Allocation(name=name, cells=("x",)) for name in ("short", "long", "again"))

    def finish(allocation: Allocation) -> None:
        append_line(run.agent_journal(allocation.name, 0), {"time": 0.0, "event": "finished"})

    finish(short)
    heard: list[str] = []
    follower = Follower(run, lambda event: heard.append(event["event"]), Silent())
    follower.add([long, short], {"long": "1", "short": "2"})
    told = []
    for ended in follower.ended():
        told.append((ended.allocation.name, ended.finished))
        if ended.allocation is short:
            finish(again)
            follower.add([again], {"again": "3"})
        if ended.allocation is again:
            finish(long)
    assert told == [("short", True), ("again", True), ("long", True)]
    assert heard == ["finished"] * 3
