"""Coordination of the nodes of an allocation, through files of the shared run directory.

agents/<allocation>.<node>.heartbeat             Heartbeat: rewritten every few seconds for the agent
agents/<allocation>.0.jsonl                      journal of the leader (node 0), which the others follow
cells/<cell>/attempt-<n>/rendezvous.json         Rendezvous: where rank 0 serves the store
cells/<cell>/attempt-<n>/abort.json              Abort: the first failure, which ends the cell on all nodes
cells/<cell>/attempt-<n>/nodes/node-<node>.json  NodeResult: how the ranks of a follower ended

A separate process writes the heartbeat: imports, forks and driver calls exceed its period. It is written while the
agent's main loop runs, however slowly, and stops with the agent. So silence means that the agent or its node is lost,
not that the agent is busy. Node 0 announces the addresses of its network interfaces; the others try them in turn.
"""

from __future__ import annotations

import fcntl
import ipaddress
import multiprocessing
import os
import signal
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray, RawValue
from pathlib import Path
from typing import Literal, TypeVar, get_args

from harness.core.errors import DiskFullError, InfrastructureError
from harness.core.hardware import interface_of, is_loopback, node_addresses
from harness.core.run.records import RankEnding
from harness.core.run.run_dir import AttemptDir, RunDir, refuse_links, text_of, write_json, write_new
from harness.core.serialization import from_jsonable, loads
from harness.core.text import counted
from harness.runtime.process import die_with

HEARTBEAT_S = 2.0  # between two heartbeats of an agent
SILENCE_S = 30.0  # a node whose heartbeat has not changed for this long counts as lost
MAX_GAP_S = 3.0  # between two polls; a longer gap is a delay of this process and counts as this much silence
POLL_S = 0.2
STARTUP_S = 900.0  # for all agents to start and load torch, from a cold shared file system
FIRST_PAUSE_S = 0.02  # of a node that waits for node 0, which is usually about to announce the store; then doubled

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NodeShare:
    """The ranks of a cell that one node runs: `size` consecutive global ranks."""

    node: int
    nodes: int
    world_size: int
    exclusive: bool = False  # the cell is timed: nothing else may run on the node
    gpus: tuple[int, ...] | None = None  # indices of the GPUs that the cell's ranks may use; None: all of the node's

    def room(self, capacity: int) -> int:
        """Return how many places the cell occupies on a node where `capacity` ranks may run at once."""
        return max(self.size, capacity) if self.exclusive else self.size

    @property
    def size(self) -> int:
        return self.world_size // self.nodes

    @property
    def ranks(self) -> range:
        return self.ranks_of(self.node)

    def ranks_of(self, node: int) -> range:
        """Return the global ranks of a node."""
        return range(node * self.size, (node + 1) * self.size)

    def misfit(self, per_node: int | None) -> str | None:
        """Return why the cell's ranks do not fit the allocation's nodes; None when they do, as on a single node."""
        if self.nodes == 1 or (self.world_size % self.nodes == 0 and per_node in (None, self.size)):
            return None
        each = f"{counted(per_node, 'rank')} each" if per_node else "the same number of ranks each"
        return f"{counted(self.world_size, 'rank')} cannot be split over {self.nodes} nodes with {each}"


AgentState = Literal["loading", "ready", "ended"]


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Heartbeat of an agent. `token` is random per process, so that files of an earlier agent are recognised."""

    time: float
    state: AgentState
    token: str
    pid: int
    host: str
    trouble: str = ""  # why no further cell may start on the node


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Where rank 0 serves the store. `addresses`: the most likely one first."""

    addresses: list[str]
    port: int


@dataclass(frozen=True, kw_only=True)
class Abort:
    """Why a cell ends early. `node` failed; `rank`: the rank that failed, None for the node itself."""

    node: int
    reason: str
    rank: int | None = None
    deadline: bool = False  # the deadline passed: dump stacks before the kill


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """How the ranks of one node ended, as its supervisor writes it for node 0."""

    node: int
    ranks: list[RankEnding] = field(default_factory=list)
    trouble: str = ""  # what went wrong on the node outside its ranks


def rendezvous_file(attempt: AttemptDir) -> Path:
    """Return the file with the address of the cell's store."""
    return attempt.root / "rendezvous.json"


def abort_file(attempt: AttemptDir) -> Path:
    """Return the file that ends the cell on all nodes."""
    return attempt.root / "abort.json"


def node_file(attempt: AttemptDir, node: int) -> Path:
    """Return the file with a node's result, which node 0 collects."""
    return attempt.root / "nodes" / f"node-{node}.json"


def heartbeat_file(run: RunDir, allocation: str, node: int) -> Path:
    """Return the file of an agent's heartbeats."""
    return run.agent_journal(allocation, node).with_suffix(".heartbeat")


def read(kind: type[T], path: Path) -> T | None:
    """Return the value in a file that another node writes; None when it does not exist yet."""
    (text,) = _texts([path])
    return from_jsonable(kind, loads(text)) if text else None


def _texts(paths: Sequence[Path]) -> list[str]:
    """Return the texts of files, empty for those that do not exist.

    Each folder is listed first: that makes an NFS client drop its cached knowledge that a file does not exist.
    """
    try:
        listed = {entry.name for folder in {path.parent for path in paths} for entry in folder.iterdir()}
    except FileNotFoundError:
        listed = set()
    return [_read(path) if path.name in listed else "" for path in paths]


def _read(path: Path) -> str:
    try:
        return text_of(path)
    except FileNotFoundError:
        return ""


def clear(attempt: AttemptDir) -> None:
    """Remove the files that an interrupted run of the same attempt left."""
    for pattern in ("rendezvous.json", "abort.json", "nodes/*.json", "ranks/rank-*"):
        for path in attempt.root.glob(pattern):
            refuse_links(path)
            path.unlink(missing_ok=True)


def write_abort(attempt: AttemptDir, abort: Abort) -> None:
    """Write abort.json unless it exists: the consequences of the first failure must not hide it."""
    path = abort_file(attempt)
    if path.exists():
        return
    # The test above saves a write in the usual case; write_new decides when two nodes fail at once.
    write_new(path, abort)


def listen(share: NodeShare, addresses: Sequence[str]) -> socket.socket:
    """Return a listening socket for the store of rank 0: on loopback for one node, on every interface for several."""
    # Every rank connects at nearly the same moment, and each node tries the address once before; a full queue would
    # cost a second's retry.
    backlog = share.world_size + share.nodes
    if share.nodes == 1:
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)
    family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
    # Every interface: which one the other nodes can reach is known only once they have tried.
    return socket.create_server(("", 0), family=family, backlog=backlog)


def announce(attempt: AttemptDir, listener: socket.socket, addresses: Sequence[str]) -> Rendezvous:
    """Publish the address of the store for the other nodes."""
    announced = Rendezvous(addresses=list(addresses), port=listener.getsockname()[1])
    write_json(rendezvous_file(attempt), announced)
    return announced


def await_rendezvous(attempt: AttemptDir, until: float) -> Rendezvous | None:
    """Return where rank 0 serves the store.

    None if the cell is aborted or `until` (seconds since the epoch) passes first.
    """
    pause_s = FIRST_PAUSE_S
    while time.time() < until:
        announced, aborted = _texts([rendezvous_file(attempt), abort_file(attempt)])
        if announced:
            return from_jsonable(Rendezvous, loads(announced))
        if aborted:
            return None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, HEARTBEAT_S)
    return None


class HeartbeatMonitor:
    """Watches the heartbeats of other agents.

    A node is silent when its heartbeat has not changed during `silence_s` of polling. Time stamps are not compared,
    since the clocks of two nodes may differ. A gap between two polls (slow imports, a hung file system) counts as
    MAX_GAP_S at most. What the files hold before the first poll may be from an earlier job, and is ignored.
    """

    def __init__(self, run: RunDir, allocation: str, others: Sequence[int], silence_s: float = SILENCE_S) -> None:
        self.silence_s = silence_s
        self._paths = {node: heartbeat_file(run, allocation, node) for node in others}
        self._old = dict(zip(self._paths, _texts(list(self._paths.values()))))
        self._texts = dict(self._old)
        self._quiet = dict.fromkeys(self._paths, 0.0)  # seconds without a change
        self._polled = time.monotonic()

    def latest(self) -> dict[int, Heartbeat]:
        """Return the newest heartbeat of every node that has written one since the first poll."""
        now = time.monotonic()
        passed, self._polled = min(now - self._polled, MAX_GAP_S), now
        for node, text in zip(self._paths, _texts(list(self._paths.values()))):
            changed = bool(text) and text != self._texts[node]
            self._quiet[node] = 0.0 if changed else self._quiet[node] + passed
            self._texts[node] = text if changed else self._texts[node]
        return self.known()

    def known(self) -> dict[int, Heartbeat]:
        """Return what `latest` returned last, without another poll."""
        heard = {node: text for node, text in self._texts.items() if text != self._old[node]}
        return {node: from_jsonable(Heartbeat, loads(text)) for node, text in heard.items()}

    def silent(self) -> list[int]:
        """Return the nodes whose agent has ended, or whose heartbeat has not changed for `silence_s`."""
        ended = {node for node, latest in self.latest().items() if latest.state == "ended"}
        return [node for node, quiet in self._quiet.items() if node in ended or quiet > self.silence_s]


STUCK_S = 900.0  # an agent whose main loop makes no iteration for this long counts as hung
TROUBLE_BYTES = 2000  # of a message in a heartbeat
_AGENT_STATES: tuple[AgentState, ...] = get_args(AgentState)


class HeartbeatWriter:
    """Owns the heartbeat file. Call `start` before torch is imported, so that the forked process stays small."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self.host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()  # as Slurm names it, where it does
        # Shared memory without a lock: a lock would be left held if the agent is killed, and a torn read costs one
        # beat.
        self._ticked = RawValue("d", time.monotonic())
        self._state = RawValue("i")  # index in _STATES
        self._trouble = RawArray("c", TROUBLE_BYTES)
        self._process: BaseProcess | None = None

    def start(self, state: AgentState) -> None:
        """Start the process that writes heartbeats, so that they go on while this one imports."""
        self._ticked.value, self._state.value = time.monotonic(), _AGENT_STATES.index(state)
        self._write(os.getpid())
        # A fork needs neither imports nor files, either of which may take longer than a heartbeat on a busy file
        # system.
        child = multiprocessing.get_context("fork").Process(target=self._run, args=(os.getpid(),), daemon=True)
        child.start()
        self._process = child

    def tick(self, state: AgentState = "ready") -> None:
        """Note an iteration of the agent's main loop; write a new state at once.

        DiskFullError when the disk of the run directory is full.
        """
        # The child cannot raise in the agent; its exit code carries the news.
        if self._process is not None and self._process.exitcode == DiskFullError.process_exit_code:
            raise DiskFullError(f"cannot write {self.path}: no space left on its disk")
        self._ticked.value = time.monotonic()
        if self._state.value != _AGENT_STATES.index(state):
            self._state.value = _AGENT_STATES.index(state)
            self._write(os.getpid())

    def report(self, trouble: str) -> None:
        """Publish why no further cell may start on this node, for the other agents."""
        self._trouble.value = trouble.encode()[: TROUBLE_BYTES - 1]
        self._write(os.getpid())

    def stop(self) -> None:
        """Stop the process and write a last heartbeat with the state "ended"."""
        if self._process is not None:
            # Killed before the last heartbeat is written, so that the child cannot overwrite it with an older state.
            self._process.kill()
            self._process.join()
        self._state.value = _AGENT_STATES.index("ended")
        self._write(os.getpid())

    def _run(self, agent: int) -> None:
        # Not the inherited handler: an agent that exits without `stop` sends SIGTERM and waits for this process.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(agent)
        # CLOCK_MONOTONIC is one clock for all processes of a node.
        while time.monotonic() < self._ticked.value + STUCK_S:
            time.sleep(HEARTBEAT_S)
            try:
                self._write(agent)
            except DiskFullError:  # `tick` raises it again in the agent
                os._exit(DiskFullError.process_exit_code)
            except OSError:
                pass  # the file system may be unavailable for a moment; only a long silence counts

    def _write(self, agent: int) -> None:
        state = _AGENT_STATES[self._state.value]
        trouble = self._trouble.value.decode(errors="replace")
        write_json(
            self.path,
            Heartbeat(time=time.time(), state=state, token=self.token, pid=agent, host=self.host, trouble=trouble),
        )


REACH_S = 30.0  # time for node 0 to accept a connection; a listening socket accepts at once
_ATTEMPT_S = 3.0  # time-out per address: packets to a wrong network are dropped, not refused
_SIOCGIFADDR = 0x8915  # linux/sockios.h
_IF_INET6 = Path("/proc/net/if_inet6")
_LINK_LOCAL = "20"  # scope in /proc/net/if_inet6; such an address is valid only together with its interface
_IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def interfaces() -> dict[str, list[str]]:
    """Return the IPv4 and IPv6 addresses of each interface by its name (Linux)."""
    addresses: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # no IPv4 address
                # struct ifreq holds a name of at most 15 bytes, and the address at offset 20.
                request = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                addresses.setdefault(name, []).append(socket.inet_ntoa(request[20:24]))
    with suppress(OSError):  # a kernel without IPv6
        for line in _IF_INET6.read_text(encoding="ascii").splitlines():
            address, _, _, scope, _, name = line.split()
            if scope != _LINK_LOCAL:
                addresses.setdefault(name, []).append(str(ipaddress.IPv6Address(bytes.fromhex(address))))
    return addresses


def resolved(name: str) -> list[str]:
    """Return the addresses that a host name resolves to; empty when it does not resolve."""
    try:
        return [str(answer[4][0]) for answer in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        return []


def own_addresses() -> list[str]:
    """Return the addresses at which other nodes may reach this one, the most likely first."""
    requested = next((os.environ[name] for name in _IFNAMES if os.environ.get(name)), "")
    return node_addresses(interfaces(), resolved(socket.gethostname()), requested)


def reach(addresses: Sequence[str], port: int, timeout_s: float = REACH_S) -> tuple[str, str]:
    """Return the first address that accepts a connection, and this host's own address on that connection.

    InfrastructureError naming every address tried and why it failed.
    """
    until = time.monotonic() + timeout_s
    while True:
        failures = {}
        for address in addresses:
            try:
                # Connecting is the only test: routes and firewalls decide, not the list of interfaces.
                with socket.create_connection((address, port), timeout=_ATTEMPT_S) as connection:
                    return address, str(connection.getsockname()[0])
            except OSError as error:
                failures[address] = error.strerror or str(error)
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    tried = ", ".join(f"{address} port {port} ({why})" for address, why in failures.items())
    raise InfrastructureError(
        f"node 0 could not be reached from {socket.gethostname()} within {timeout_s:g} s: {tried}. Set "
        "NCCL_SOCKET_IFNAME in the cluster profile's env to the network interface that connects the nodes"
    )


def gloo_interface(address: str) -> dict[str, str]:
    """Return GLOO_SOCKET_IFNAME for a host whose name resolves to a loopback address, which gloo would bind to.

    Empty when it is already set or not needed. `address`: the one of this host that other nodes use.
    """
    named = resolved(socket.gethostname())
    if os.environ.get("GLOO_SOCKET_IFNAME") or is_loopback(address) or any(not is_loopback(alias) for alias in named):
        return {}
    name = interface_of(address, interfaces())
    return {"GLOO_SOCKET_IFNAME": name} if name else {}
