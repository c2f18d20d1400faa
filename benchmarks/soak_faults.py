"""What bench_soak.py does to runs: signals to processes; on a cluster also to jobs, nodes and daemons."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from figures import ROOT

sys.path.insert(0, str(ROOT))

from harness.core.run.events import read_lines
from harness.core.serialization import loads
from tests.slurm.lab import SlurmLab
from tests.slurm.lab_files import NODES

Happened = tuple[str, Callable[[], None] | None]  # what happened, and what ends it
AGENT = b"harness.runtime.agent"  # among the arguments of an agent and of what it forks


@dataclass(frozen=True, kw_only=True)
class Target:
    """A run under way."""

    folder: Path  # of the run
    launcher: subprocess.Popen[bytes]
    lab: SlurmLab | None = None  # where it runs on a cluster


@dataclass(frozen=True, kw_only=True)
class Struck:
    """A fault that happened."""

    what: str
    cells: frozenset[str]  # that it may have struck
    undo: Callable[[], None] | None = None  # ends it; None if it has no end


def processes(folder: Path) -> dict[str, list[int]]:
    """Pids of a run's processes by kind: `agent`, `supervisor` and `rank`, told apart by the log that they write."""
    found: dict[str, list[int]] = {"agent": [], "supervisor": [], "rank": []}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            if AGENT not in arguments or os.fsencode(folder) not in arguments:
                continue
            log = (process / "fd/1").readlink().name
            kind = "rank" if log.startswith("rank-") else "supervisor" if log == "supervisor.log" else "agent"
            found[kind].append(int(process.name))
    return found


def cells_of(folder: Path, *events: str) -> set[str]:
    """Cells of which an agent of a run has journalled one of these events."""
    found = (event for journal in folder.glob("agents/*.jsonl") for event in read_lines(journal))
    return {event["cell"] for event in found if event["event"] in events}


def strike(target: Target, draw: random.Random) -> Struck | None:
    """One fault, drawn from those that this run can suffer; None if the drawn kind finds nothing to act on now."""
    plan = loads((target.folder / "plan.json").read_text(encoding="utf-8"))
    before = cells_of(target.folder, "cell_finished")
    fault = draw.choice(LOCAL if target.lab is None else LOCAL + CLUSTER)
    try:
        happened = fault(target, draw)
    except ProcessLookupError:  # the victim has just ended
        return None
    if happened is None:
        return None
    what, undo = happened
    # A rank or a supervisor is of a cell that has started; other faults may also end cells that wait.
    could = {cell["id"] for cell in plan["expansion"]["cells"]}
    if fault in OF_A_CELL:
        could = cells_of(target.folder, "cell_started")
    return Struck(what=what, cells=frozenset(could - before), undo=undo)


def _signalled(target: Target, draw: random.Random, kind: str, number: signal.Signals) -> Happened | None:
    victims = processes(target.folder)[kind]
    if not victims:
        return None
    os.kill(draw.choice(victims), number)
    return f"{number.name} to a process: {kind}", None


def _rank_killed(target: Target, draw: random.Random) -> Happened | None:
    return _signalled(target, draw, "rank", signal.SIGKILL)


def _rank_frozen(target: Target, draw: random.Random) -> Happened | None:
    return _signalled(target, draw, "rank", signal.SIGSTOP)


def _supervisor_killed(target: Target, draw: random.Random) -> Happened | None:
    return _signalled(target, draw, "supervisor", signal.SIGKILL)


def _agent_killed(target: Target, draw: random.Random) -> Happened | None:
    return _signalled(target, draw, "agent", signal.SIGKILL)


def _launcher_killed(target: Target, draw: random.Random) -> Happened:
    target.launcher.kill()
    return "SIGKILL to the launcher", None


def _launcher_interrupted(target: Target, draw: random.Random) -> Happened:
    target.launcher.send_signal(signal.SIGINT)
    return "SIGINT to the launcher", None


def _job_cancelled(target: Target, draw: random.Random) -> Happened | None:
    lab = _lab(target)
    if not (jobs := lab.output("squeue", "-h", "-t", "RUNNING", "-o", "%A").split()):
        return None
    lab.output("scancel", draw.choice(jobs))
    return "scancel of a job", None


def _node_lost(target: Target, draw: random.Random) -> Happened:
    lab, node = _lab(target), draw.choice(NODES)
    lab.kill_node(node)
    return "a node powered off", lambda: lab.start_node(node)


def _daemon_silent(target: Target, draw: random.Random) -> Happened:
    lab, node = _lab(target), draw.choice(NODES)
    lab.freeze_daemon(node)
    return "a node's slurmd silent", lambda: lab.thaw_daemon(node)


def _controller_restarted(target: Target, draw: random.Random) -> Happened:
    _lab(target).restart_controller()
    return "slurmctld restarted", None


def _accounting_lost(target: Target, draw: random.Random) -> Happened:
    lab = _lab(target)
    lab.stop_accounting()
    return "slurmdbd away", lab.start_accounting


def _lab(target: Target) -> SlurmLab:
    assert target.lab is not None
    return target.lab


OF_A_CELL = (_rank_killed, _rank_frozen, _supervisor_killed)
LOCAL = (*OF_A_CELL, _agent_killed, _launcher_killed, _launcher_interrupted)
CLUSTER = (_job_cancelled, _node_lost, _daemon_silent, _controller_restarted, _accounting_lost)
