"""Agents on this machine, as processes that only write events."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.run.events import Event, Failed
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation
from harness.core.serialization import loads
from harness.core.stack import ReadyStack, Stack
from harness.launch import local
from harness.launch.local import at_once, cores, end_without_agent, gpus_here, run_allocations

# Records that it started, waits until `together` agents have, records whether they did, and fails if its name says so.
AGENT = """
import json, os, sys, time
from pathlib import Path
run, name, together = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
(run / "agents").mkdir(exist_ok=True)
def say(event, **facts):
    with (run / "agents" / f"{name}.0.jsonl").open("a") as stream:
        stream.write(json.dumps({"event": event, **facts}) + "\\n")
say("started", pid=os.getpid())
(run / f"{name}.process").write_text(json.dumps({"path": os.environ.get("PYTHONPATH", ""), "cwd": os.getcwd()}))
limit = time.monotonic() + 600
while len(list((run / "agents").glob("*.jsonl"))) < together and time.monotonic() < limit:
    time.sleep(0.01)
say("failed", reason=name + (" together" if time.monotonic() < limit else " alone"), traceback="")
if "fails" in name:
    print("no module named megatron; asked https://me:swordfish@host/simple")
    sys.exit(1)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "run" / "submissions").mkdir(parents=True)
    return RunDir(tmp_path / "run")


def ran(run: RunDir, together: int, *names: str, monkeypatch: pytest.MonkeyPatch, cores: int = 2) -> list[Event]:
    """Run allocations of these names, each in the stack that its name ends with; returns their events."""
    allocations = [
        Allocation(name=name, cells=(f"cell-{name}",), stack=name.rpartition("-")[2] if "-" in name else "default")
        for name in names
    ]
    stacks = {
        item.stack: ReadyStack(requested=Stack(name=item.stack)) for item in allocations if item.stack != "default"
    }
    monkeypatch.setattr(local, "cores", lambda: cores)
    monkeypatch.setattr(
        local,
        "agent_command",
        lambda run, name, stack=None: [sys.executable, "-c", AGENT, str(run.root), name, str(together)],
    )
    events: list[Event] = []
    run_allocations(run, allocations, stacks, events.append)
    return events


def result(run: RunDir, cell: str) -> dict[str, Any]:
    values: dict[str, Any] = loads(run.attempt(cell).result.read_text())
    return values


def reasons(events: list[Event]) -> list[str]:
    return [event.reason for event in events if isinstance(event, Failed)]


def test_agents_of_two_stacks_run_side_by_side_and_share_the_ranks(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = ran(run, 2, "local-a", "local-b", monkeypatch=monkeypatch)
    assert sorted(reasons(events)) == ["local-a together", "local-b together"]
    orders = [loads(run.submission(name).read_text()) for name in ("local-a", "local-b")]
    assert [order["parallel_ranks"] for order in orders] == [2, 2]


def test_no_more_agents_than_cores_run_at_once_and_all_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    events = ran(run, 1, "local-a", "local-b", "local-c", monkeypatch=monkeypatch, cores=1)
    assert [event.kind.value for event in events] == ["started", "failed"] * 3
    assert reasons(events) == [f"local-{name} together" for name in "abc"]


def test_an_agent_that_fails_ends_its_own_cells_with_the_end_of_its_log(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(run, 2, "local-fails", "local-b", monkeypatch=monkeypatch)
    ended = result(run, "cell-local-fails")
    assert ended["status"] == "error"
    assert "the agent ended with exit code 1" in ended["reason"]
    assert "no module named megatron; asked https://***@host/simple" in ended["reason"]
    assert run.submission("local-fails", ".log").read_text().endswith("asked https://***@host/simple\n")
    assert not run.attempt("cell-local-b").result.exists()


def test_an_agent_in_a_stack_gets_the_runs_node_code_and_not_the_callers_path(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    for name in ("local-a", "local"):
        ran(run, 1, name, monkeypatch=monkeypatch)
    inside, outside = (loads((run.root / f"{name}.process").read_text()) for name in ("local-a", "local"))
    assert (inside["path"], inside["cwd"]) == (str(run.node_code), str(run.root))
    assert (run.node_code / "harness" / "runtime" / "agent.py").exists()
    assert outside["path"] == "/elsewhere"


def test_agents_are_stopped_when_the_launcher_is_interrupted(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[local._Agent] = []
    begin = local._Agent.__init__

    def note(agent: local._Agent, *arguments: Any) -> None:
        begin(agent, *arguments)
        started.append(agent)

    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local._Agent, "__init__", note)
    monkeypatch.setattr(
        local,
        "agent_command",
        lambda run, name, stack=None: [sys.executable, "-c", AGENT, str(run.root), name, "9"],
    )
    allocations = [Allocation(name=name, cells=()) for name in ("a", "b")]
    with pytest.raises(KeyboardInterrupt):
        run_allocations(run, allocations, {}, interrupt, parallel_ranks=2)
    assert started
    assert all(agent.process.poll() is not None for agent in started)


def test_a_stack_that_cannot_be_used_ends_its_cells_as_error(run: RunDir) -> None:
    end_without_agent(run, "cell", ReadyStack(requested=Stack(name="s"), error="no uv"))
    said = result(run, "cell")
    assert (said["status"], said["reason"]) == ("error", "stack s cannot be used: no uv")


def test_stacks_run_one_after_another_where_their_agents_would_assign_the_same_gpus(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus_here(tmp_path) == 3
    assert [at_once(3, 8, interleaved=interleaved, gpus=3) for interleaved in (False, True)] == [
        1,
        max(2, min(3, cores())),
    ]
    assert at_once(3, 8, interleaved=False, gpus=0) == min(3, cores())
