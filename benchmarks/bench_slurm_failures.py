"""Time until a crashed cell is reported, and until a dead node's cells are resubmitted. Run by bench_slurm.py."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path

from figures import Figure
from slurm_figures import ON_LAB, events, new_run, ranks_of_cells, wait_until

from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

# Long cells of few ranks, which run until they are killed.
LONG = """\
name: long
model: {{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}}
train: {{steps: 3000, global_batch: 8, seq_length: 64}}
matrix:
  tp: 2
  packing: {packing}
launch: {{nodes_per_cell: {nodes}, deadline_s: 600}}
"""
SEEN_S = 5.0
AGAIN_S = 60.0
SETTLE_S = 1.0  # time that a cell's ranks run before one of them is killed
RANK_LOG = re.compile(r"/cells/([^/]+)/attempt-1/log/rank-(\d+)\.log$")
# slurmctld's message for a node that stops responding; it ends the node's jobs as NODE_FAIL at this moment
NODE_DOWN = re.compile(r"^\[([^\]]+)\] .*[Nn]odes? (\S+) not responding, setting DOWN", re.MULTILINE)


def measure(lab: SlurmLab, runs: int) -> list[Figure]:
    one = [seconds for _ in range(runs) for seconds in _crashes(lab, nodes=1)]
    two = [seconds for _ in range(runs) for seconds in _crashes(lab, nodes=2)]
    again = [_dead_node(lab) for _ in range(runs)]
    name = "from a rank's death to the launcher's message"
    return [
        Figure(name=f"{name}, cells on one node", values=one, limit=SEEN_S, worst=True),
        Figure(name=f"{name}, cells on two nodes", values=two, limit=SEEN_S, worst=True),
        Figure(name="from NODE_FAIL to the cells' next submission", values=again, limit=AGAIN_S, worst=True),
    ]


class _Output:
    """The launcher's lines with the time of each."""

    def __init__(self, launcher: subprocess.Popen[str]) -> None:
        self.launcher = launcher
        self.lines: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self.launcher.stdout or ():
            self.lines.append((time.time(), line))

    def shown(self, cell: str) -> float | None:
        """When the cell's end was shown."""
        return next((when for when, line in self.lines if line.startswith("[") and cell in line), None)

    def text(self) -> str:
        return "".join(line for _, line in self.lines)


def _crashes(lab: SlurmLab, nodes: int) -> list[float]:
    """Kill a rank of every cell of a run; seconds from each kill until the launcher has journalled and shown it."""
    killed: dict[str, float] = {}
    with new_run(lab, LONG.format(packing="[reference, sft]", nodes=nodes)) as cluster:
        launcher = cluster.start("run", *ON_LAB)
        output = _Output(launcher)
        try:
            wait_until(lambda: cluster.begun() and cluster.jobs(), 60, "jobs are submitted")
            sizes = ranks_of_cells(cluster)
            while len(killed) < len(sizes):
                cell = wait_until(lambda: _whole_cell(cluster, sizes, killed), 180, "a cell runs")
                time.sleep(SETTLE_S)
                victim = max(_ranks(cluster)[cell].items())[1]
                killed[cell] = time.time()
                os.kill(victim, signal.SIGKILL)
            shown = {cell: wait_until(lambda: output.shown(cell), 120, f"{cell} is shown") for cell in killed}  # noqa: B023
        except TimeoutError as error:
            raise SystemExit(f"{error}\n{output.text()}") from error
        finally:
            launcher.kill()
            launcher.wait()
        failed = {event["cell"] for event in events(cluster) if event["event"] == "cell_finished"}
        assert failed == set(killed), failed  # shown only after it is journalled
        return [shown[cell] - when for cell, when in killed.items()]


def _whole_cell(cluster: Cluster, sizes: dict[str, int], killed: dict[str, float]) -> str | None:
    """A cell that was not killed yet and whose ranks all run."""
    return next(
        (cell for cell, pids in _ranks(cluster).items() if cell not in killed and len(pids) == sizes[cell]), None
    )


def _ranks(cluster: Cluster) -> dict[str, dict[int, int]]:
    """Cell -> rank -> pid on this machine, of the run's live ranks, identified by the log they write to."""
    found: dict[str, dict[int, int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            log = str((process / "fd/1").readlink())
            if log.startswith(str(cluster.directory)) and (named := RANK_LOG.search(log)):
                found.setdefault(named[1], {})[int(named[2])] = int(process.name)
    return found


def _dead_node(lab: SlurmLab) -> float:
    """Kill the node of a cell while another cell runs elsewhere; seconds from NODE_FAIL to the next submission."""
    with new_run(lab, LONG.format(packing="sft", nodes=1)) as cluster:
        again = math.inf  # unless it is submitted
        launcher = cluster.start("run", *ON_LAB)
        output = _Output(launcher)
        node = cluster.until_a_cell_starts(2)
        log = lab.folder / "log/slurmctld.log"
        before = log.stat().st_size
        try:
            cluster.until_a_cell_starts(1)
            lab.kill_node(node)
            failed = wait_until(lambda: _set_down(log, before, node), 120, f"Slurm sets {node} down")
            with contextlib.suppress(TimeoutError):
                again = wait_until(lambda: _submitted_again(cluster), 2 * AGAIN_S, "the cells are submitted again")
        except TimeoutError as error:
            raise SystemExit(f"{error}\n{output.text()}") from error
        finally:
            launcher.kill()
            launcher.wait()
            lab.start_node(node)
    wait_until(lambda: set(lab.node_states().values()) == {"idle"}, 60, "all nodes are back")
    return again - failed


def _set_down(log: Path, offset: int, node: str) -> float | None:
    """When the controller set a node down for not responding, in seconds since the epoch, from its log."""
    text = log.read_bytes()[offset:].decode(errors="replace")
    return next(
        (datetime.fromisoformat(when).timestamp() for when, names in NODE_DOWN.findall(text) if names == node), None
    )


def _submitted_again(cluster: Cluster) -> float | None:
    """When the second attempt was submitted."""
    found = [event["time"] for event in events(cluster) if event["event"] == "submitted" and "again" in event["job"]]
    return found[0] if found else None
