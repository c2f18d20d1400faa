"""What the nodes of an allocation tell each other, all of it through files of the shared run directory.

agents/<allocation>.<node>.heartbeat             Beat: rewritten every few seconds by the agent's main loop
agents/<allocation>.0.jsonl                      journal of the leader (node 0); the others start what it says
cells/<cell>/attempt-<n>/rendezvous.json         Rendezvous: where rank 0 serves the store
cells/<cell>/attempt-<n>/abort.json              Abort: the first failure, which ends the cell on all nodes
cells/<cell>/attempt-<n>/nodes/node-<node>.json  NodeResult: how the ranks of a follower ended
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from harness.core.run.records import RankEnding
from harness.core.run.run_dir import AttemptDir, RunDir, write_json
from harness.core.serialization import dumps, from_jsonable, loads

BEAT_S = 2.0  # between two heartbeats of an agent
SILENCE_S = 30.0  # a node whose heartbeat has not changed for so long is taken for dead
LOOK_S = 3.0  # the most that passes between two looks, as far as silence is counted
POLL_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Share:
    """The ranks of a cell that one node runs: `size` consecutive global ranks."""

    node: int
    nodes: int
    world_size: int
    alone: bool = False  # the cell is timed: nothing may run beside it
    gpus: tuple[int, ...] | None = None  # of this node, that the cell's ranks may use; None: all of them

    def room(self, capacity: int) -> int:
        """What the cell takes of the ranks that may run at once on a node."""
        return max(self.size, capacity) if self.alone else self.size

    @property
    def size(self) -> int:
        return self.world_size // self.nodes

    @property
    def ranks(self) -> range:
        return self.ranks_of(self.node)

    def ranks_of(self, node: int) -> range:
        return range(node * self.size, (node + 1) * self.size)

    def misfit(self, per_node: int | None) -> str | None:
        """Why the cell cannot run on the allocation's nodes, None when it can. One node takes cells of any size."""
        if self.nodes == 1 or (self.world_size % self.nodes == 0 and per_node in (None, self.size)):
            return None
        return f"{self.world_size} ranks do not fill {self.nodes} nodes with {per_node or 'equally many'} ranks each"


@dataclass(frozen=True, kw_only=True)
class Beat:
    """Heartbeat of an agent. `token` is drawn anew by each agent process, so that a file of a former one is told."""

    time: float
    state: str  # loading | ready | ended
    token: str
    pid: int
    host: str


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where rank 0 serves the store: the most likely address first."""

    addresses: list[str]
    port: int


@dataclass(frozen=True, kw_only=True)
class Abort:
    """Why a cell ends early. `node` is the node that failed, `rank` the rank that did if it was one."""

    node: int
    reason: str
    rank: int | None = None
    deadline: bool = False  # the time was up: dump stacks before the kill


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    node: int
    ranks: list[RankEnding] = field(default_factory=list)
    trouble: str = ""  # what went wrong on the node outside its ranks


def rendezvous_file(attempt: AttemptDir) -> Path:
    return attempt.root / "rendezvous.json"


def abort_file(attempt: AttemptDir) -> Path:
    return attempt.root / "abort.json"


def node_file(attempt: AttemptDir, node: int) -> Path:
    return attempt.root / "nodes" / f"node-{node}.json"


def heartbeat_file(run: RunDir, allocation: str, node: int) -> Path:
    return run.agent_journal(allocation, node).with_suffix(".heartbeat")


def read(kind: type[T], path: Path) -> T | None:
    """The value in a file that another node may have written; None when it is not there yet."""
    text = _text(path)
    return from_jsonable(kind, loads(text)) if text else None


def _text(path: Path) -> str:
    """Text of a file, empty when there is none."""
    return _texts([path])[0]


def _texts(paths: Sequence[Path]) -> list[str]:
    """Texts of files of one folder, empty where there is none; the folder is listed once for all.

    Listing it makes an NFS client forget that a file was not there a moment ago.
    """
    try:
        there = {entry.name for folder in {path.parent for path in paths} for entry in folder.iterdir()}
    except FileNotFoundError:
        there = set()
    return [_read(path) if path.name in there else "" for path in paths]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def clear(attempt: AttemptDir) -> None:
    """Remove what an interrupted run of the same attempt left, so that nobody takes it for news."""
    for pattern in ("rendezvous.json", "abort.json", "nodes/*.json", "ranks/rank-*"):
        for path in attempt.root.glob(pattern):
            path.unlink(missing_ok=True)


def write_abort(attempt: AttemptDir, abort: Abort) -> None:
    """Write abort.json unless it is there: the first failure stays, and what follows from it does not hide it."""
    path = abort_file(attempt)
    if path.exists():
        return
    temporary = path.with_name(f".abort.{socket.gethostname()}.{os.getpid()}.tmp")
    temporary.write_text(dumps(abort) + "\n", encoding="utf-8")
    try:
        os.link(temporary, path)  # unlike a rename, it refuses to replace the abort of another node
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        temporary.replace(path)
    temporary.unlink(missing_ok=True)


def listen(share: Share, addresses: Sequence[str]) -> socket.socket:
    """A listening socket on which rank 0 serves the store: on loopback, or on every interface for other nodes."""
    backlog = share.world_size + share.nodes
    if share.nodes == 1:
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)
    family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=backlog)


def announce(attempt: AttemptDir, listener: socket.socket, addresses: Sequence[str]) -> Rendezvous:
    """Tell the other nodes where the store is."""
    meeting = Rendezvous(addresses=list(addresses), port=listener.getsockname()[1])
    write_json(rendezvous_file(attempt), meeting)
    return meeting


def await_rendezvous(attempt: AttemptDir, until: float) -> Rendezvous | None:
    """Where the leader's store is; None when the cell ended first. `until` in seconds since the epoch."""
    while time.time() < until:
        if meeting := read(Rendezvous, rendezvous_file(attempt)):
            return meeting
        if read(Abort, abort_file(attempt)):
            return None
        time.sleep(0.02)
    return None


class Heartbeats:
    """Watches the heartbeats of other agents.

    A heartbeat is silent when this process has looked again and again for `silence_s` and it never changed: clocks of
    two nodes may differ, and time in which this process itself did not look (it imported, or its file system stood
    still) counts as one look. What stands in the files before the first look may be of a former job.
    """

    def __init__(self, run: RunDir, allocation: str, others: Sequence[int], silence_s: float = SILENCE_S) -> None:
        self.silence_s = silence_s
        self._paths = {node: heartbeat_file(run, allocation, node) for node in others}
        self._old = dict(zip(self._paths, _texts(list(self._paths.values()))))
        self._texts = dict(self._old)
        self._quiet = dict.fromkeys(self._paths, 0.0)  # seconds of looking without a change
        self._looked = time.monotonic()

    def beats(self) -> dict[int, Beat]:
        """The newest heartbeat of every node that was heard since the first look."""
        now = time.monotonic()
        passed, self._looked = min(now - self._looked, LOOK_S), now
        for node, text in zip(self._paths, _texts(list(self._paths.values()))):
            changed = bool(text) and text != self._texts[node]
            self._quiet[node] = 0.0 if changed else self._quiet[node] + passed
            self._texts[node] = text if changed else self._texts[node]
        heard = {node: text for node, text in self._texts.items() if text != self._old[node]}
        return {node: from_jsonable(Beat, loads(text)) for node, text in heard.items()}

    def silent(self) -> list[int]:
        """Nodes whose agent has ended or was not heard for `silence_s`."""
        ended = {node for node, beat in self.beats().items() if beat.state == "ended"}
        return [node for node, quiet in self._quiet.items() if node in ended or quiet > self.silence_s]
