"""How jobs are followed, without Slurm."""

from __future__ import annotations

from pathlib import Path

from harness.edge.run_dir import RunDir, append_line
from harness.edge.slurm_launcher import Ended, follow
from harness.edge.slurm_state import SlurmClient
from harness.words.run_plan import Allocation


class Silent(SlurmClient):
    """A Slurm that cannot be asked, and a test that does not wait for ever."""

    def _call(self, argv: list[str]) -> str | None:
        self.calls += 1
        assert self.calls < 6, "a job is followed for too long"
        return None


def test_a_job_that_ended_is_settled_while_the_others_go_on(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    short, long, again = (Allocation(name=name, cells=("x",)) for name in ("short", "long", "again"))
    settled = []

    def finish(allocation: Allocation) -> None:
        append_line(run.agent_journal(allocation.name, 0), {"time": 0.0, "event": "finished"})

    def settle(ended: Ended) -> dict[Allocation, str]:
        settled.append(ended.allocation.name)
        if ended.allocation is short:
            finish(again)
            return {again: "3"}
        if ended.allocation is again:
            finish(long)
        return {}

    finish(short)
    heard: list[str] = []
    follow(run, {long: "1", short: "2"}, lambda event: heard.append(event["event"]), Silent(), settle)
    assert settled == ["short", "again", "long"]
    assert heard == ["finished"] * 3
