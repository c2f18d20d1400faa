"""One attempt of one cell on one node: forked from the agent, it forks the node's ranks through torch elastic.

Only elastic's process layer is used. Elastic's agent runs a store with C++ threads in the process that forks, and a
rank forked at the wrong moment then hangs in its first store call (seen in 1 of 46 cells). Here the supervisor of node
0 binds the port, and rank 0 serves the store on that socket. It also collects how the ranks of all nodes ended.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import time
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

from harness.core.cell.config import CellConfig
from harness.core.cell.modelled import follows_choices, same_micro_batches
from harness.core.errors import InfrastructureError
from harness.core.hardware import shown_gpus
from harness.core.run.record_file import RecordReader, digest_of_choices, write_record
from harness.core.run.records import BuiltSeen, CellResult, OracleRecord, RankEnding, RankRecord, sealed
from harness.core.run.run_dir import AttemptDir, appending, digest_of, text_of, write_json
from harness.core.serialization import from_jsonable, loads
from harness.oracle.choices import Choice, Place, choices_of
from harness.oracle.operations import operations_of
from harness.oracle.record import key_of, not_modelled, record_of
from harness.runtime.coordination import rendezvous
from harness.runtime.coordination.rendezvous import (
    Abort,
    HeartbeatMonitor,
    NodeResult,
    NodeShare,
    gloo_interface,
    own_addresses,
    reach,
)
from harness.runtime.deadline import Deadline
from harness.runtime.device.gpu_health import xid_lines
from harness.runtime.process import die_with, end_session, log_to, remove_secrets, temporary_files_in
from harness.runtime.rank import rank_main
from harness.runtime.rank_endings import cell_result, rank_endings

END_GRACE_S = 5.0  # between SIGTERM and SIGKILL for ranks that end because another node failed
COLLECT_GRACE_S = 10.0  # after the deadline, for the other nodes' results


class _Peers:
    """The other nodes of a cell, polled while waiting for the ranks: a process that forks must have no threads."""

    def __init__(self, attempt: AttemptDir, share: NodeShare, deadline_at: float, heartbeats: HeartbeatMonitor) -> None:
        self.attempt, self.share, self.deadline_at, self.heartbeats = attempt, share, deadline_at, heartbeats

    def abort(self, reason: str, *, node: int | None = None, rank: int | None = None, deadline: bool = False) -> None:
        node = self.share.node if node is None else node
        rendezvous.write_abort(self.attempt, Abort(node=node, rank=rank, reason=reason, deadline=deadline))

    def check(self, processes: Any) -> bool:
        """Terminate this node's ranks when the cell was aborted; return whether the deadline passed on another node."""
        if self.share.node == 0:
            for node in self.heartbeats.silent():
                self.abort(f"node {node} sends no heartbeats", node=node)
        abort = rendezvous.read(Abort, rendezvous.abort_file(self.attempt))
        if abort is not None and not abort.deadline:
            processes.close(signal.SIGTERM, timeout=END_GRACE_S)
        return abort is not None and abort.deadline

    def collect(self) -> dict[int, NodeResult]:
        """Return the results of the other nodes, without those that are silent or exceed the deadline by
        COLLECT_GRACE_S.
        """
        results: dict[int, NodeResult] = {}
        missing = set(range(self.share.nodes)) - {self.share.node}
        while missing:
            late = time.time() > self.deadline_at + COLLECT_GRACE_S
            # Decided before the files are read, so that a result that arrives in between still counts.
            given_up = missing if late else missing.intersection(self.heartbeats.silent())
            for node in sorted(missing):
                if result := rendezvous.read(NodeResult, rendezvous.node_file(self.attempt, node)):
                    results[node] = result
            missing -= results.keys() | given_up
            time.sleep(rendezvous.POLL_S / 4 if missing else 0)
        return results


def supervise(
    attempt_root: str,
    cell: str,
    number: int,
    config: CellConfig,
    agent: int,
    deadline_at: float,
    share: NodeShare,
    heartbeats: HeartbeatMonitor,
) -> None:
    """Run the cell's ranks on this node, in a new session; node 0 writes result.json.

    `agent`: pid of the parent. `deadline_at`: seconds since the epoch.
    """
    die_with(agent)
    # A session of its own: Ctrl-C in the launcher's terminal must not reach the ranks, and `end_session` needs one.
    os.setsid()
    attempt = AttemptDir(Path(attempt_root))
    log_to(log := attempt.root / "log" / ("supervisor.log" if share.node == 0 else f"supervisor-{share.node}.log"))
    if share.gpus is not None:  # ranks, which initialise CUDA, see only these GPUs, as cuda:0 and up
        os.environ["CUDA_VISIBLE_DEVICES"] = shown_gpus(share.gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    part = _Part(attempt, cell, number, config, share)
    result = part.run(deadline_at, heartbeats)
    if isinstance(result, NodeResult):
        part.end(result)
    ran = [(part, result)]
    if config.resume and (resumed := _resume(part, result, deadline_at, heartbeats)):
        ran.append(resumed)
    for ran_part, ended in ran:
        if isinstance(ended, CellResult):
            # After all ranks have ended, when their cores are free; and before result.json, which holds the oracle's
            # digest.
            ended.oracle = ran_part.write_oracle()
    remove_secrets([log])
    log_to(log)  # remove_secrets may have replaced the file
    for ran_part, ended in reversed(ran):  # the first part's result says that the attempt is over
        if isinstance(ended, CellResult):
            ended.finished = time.time() if ran_part is part else ended.finished
            ran_part.end(ended)


def _resume(
    part: _Part, result: CellResult | NodeResult, deadline_at: float, heartbeats: HeartbeatMonitor
) -> tuple[_Part, CellResult | NodeResult] | None:
    """Run the part of the cell that continues from the checkpoint, if the first one completed on this node.

    Node 0, which knows of all nodes, stops the others if it did not complete everywhere. Returns the part if it ran.
    """
    later = replace(part, attempt=part.attempt.resumed, config=part.config.resumed, saved=part)
    if all(ending.ended == "completed" for ending in result.ranks):
        if part.share.node == 0:
            requested = loads(text_of(part.attempt.config))  # without this node's longer deadline
            write_json(later.attempt.config, from_jsonable(CellConfig, requested).resumed)
        ended = later.run(deadline_at, heartbeats)
        if isinstance(ended, NodeResult):
            later.end(ended)
        return later, ended
    if part.share.nodes > 1 and part.share.node == 0:
        stopped = Abort(node=0, reason="the part that saves the checkpoint did not complete")
        rendezvous.write_abort(later.attempt, stopped)
    return None


@dataclass(frozen=True)
class _Part:
    """The ranks of one part of an attempt: all of them, or those before and after a resume."""

    attempt: AttemptDir
    cell: str
    number: int
    config: CellConfig
    share: NodeShare
    saved: _Part | None = None  # that saved the checkpoint which this one continues from

    def run(self, deadline_at: float, heartbeats: HeartbeatMonitor) -> CellResult | NodeResult:
        """Run the ranks; return what `end` writes."""
        attempt, share, started, begun = self.attempt, self.share, time.time(), time.monotonic()
        deadline = Deadline(deadline_at)
        deadline.arm()
        peers = _Peers(attempt, share, deadline_at, heartbeats) if share.nodes > 1 else None
        trouble, exit_codes, late = "", dict[int, int](), dict[int, float]()
        try:
            with temporary_files_in(attempt.root / f"elastic-{share.node}"):
                exit_codes, late = _launch(attempt, self.cell, self.config, deadline, share, peers)
        except InfrastructureError as error:
            if peers is None:
                raise
            trouble = f"node {share.node}: {error}"
            peers.abort(trouble)
        deadline.disarm()
        end_session()
        _log_xids(attempt, [rank for rank, code in exit_codes.items() if code], begun)
        endings = rank_endings(attempt, share.ranks, exit_codes, late)
        # After `end_session`: no process may still write to the logs, since this replaces them.
        remove_secrets([attempt.log(rank) for rank in share.ranks])
        if share.node > 0:
            return NodeResult(node=share.node, ranks=endings, trouble=trouble)
        troubles = _add_other_nodes(attempt, endings, peers) if peers else []
        deadline_s = self.config.deadline_s
        return cell_result(self.cell, self.number, attempt, endings, troubles, started, deadline_s=deadline_s)

    def write_oracle(self) -> str:
        """Write what the oracle computes of the part, for the model that upstream built on rank 0; return its digest.

        A cell that did not complete is not judged by it, and does not wait for it.
        """
        try:
            record = RecordReader().read(text_of(self.attempt.record(0)))
        except (OSError, ValueError, TypeError):  # the judge names what is wrong with the record
            return ""
        if record.ended != "completed" or not record.steps:
            return ""
        write_json(self.attempt.oracle, self._oracle(record.built))
        return digest_of(self.attempt.oracle)

    def _oracle(self, built: list[BuiltSeen]) -> OracleRecord:
        """Return what the oracle computes, or has computed in this run for a cell with the same model and rows."""
        oracle = OracleRecord(cell=self.cell, built=built)
        try:
            oracle.not_modelled = not_modelled(self.config, built)
            if not oracle.not_modelled:
                parts = [part for part in (self.saved, self) if part is not None]
                routed = [part._routed() for part in parts]
                oracle.choices = digest_of_choices([record for ranks in routed for record in ranks])
                choices: dict[Place, Choice] = {}
                for part, ranks in zip(parts, routed):
                    if part is self or same_micro_batches(self.config):
                        choices |= choices_of(part.config, ranks)
                shared = self.attempt.run.oracle(key_of(self.config, built, choices))
                # Two cells may compute it at once; they write the same bytes, and the rename of either is complete.
                if not shared.exists():
                    write_record(shared, record_of(self.cell, self.config, built, choices))
                # Read back even when just written, so that what is judged has gone through the same text in every cell.
                oracle.record = replace(RecordReader().read(text_of(shared)), cell=self.cell)
                if self.config.operations is not None:
                    write_json(self.attempt.oracle_operations, operations_of(self.config, built, choices))
        except InfrastructureError:  # such as a full disk
            raise
        except Exception:  # whatever it is: the judge shows it as the reason why the cell is not judged
            oracle.record, oracle.failed = None, traceback.format_exc()
        return oracle

    def _routed(self) -> list[RankRecord]:
        """Return the records of all ranks if the oracle follows their routers, else none."""
        ranks = range(self.config.layout.world_size) if follows_choices(self.config) else ()
        return [RecordReader().read(text_of(self.attempt.record(rank))) for rank in ranks]

    def end(self, result: CellResult | NodeResult) -> None:
        """Write how the ranks ended, as the last file of the part."""
        if isinstance(result, NodeResult):
            write_json(rendezvous.node_file(self.attempt, self.share.node), result)
        else:
            write_json(self.attempt.result, sealed(result))


def _launch(
    attempt: AttemptDir, cell: str, config: CellConfig, deadline: Deadline, share: NodeShare, peers: _Peers | None
) -> tuple[dict[int, int], dict[int, float]]:
    """Fork the ranks and wait for them; elastic ends the other ranks once one has failed.

    Returns rank -> exit code, and rank -> time (seconds since the epoch) for ranks still running at the deadline.
    """
    addresses = own_addresses() if share.nodes > 1 and share.node == 0 else ["127.0.0.1"]
    listener = rendezvous.listen(share, addresses) if share.node == 0 else None
    # The ranks have inherited the socket; this process must close its copy, or the port outlives rank 0.
    with listener or nullcontext():
        store = _store_address(attempt, share, listener, addresses, deadline)
        if store is None:
            return {}, {}
        descriptor = listener.fileno() if listener else None
        common = {"WORLD_SIZE": str(share.world_size), "LOCAL_WORLD_SIZE": str(share.size), **store}
        ranks = dict(enumerate(share.ranks))
        arguments = (str(attempt.root), cell, config, deadline.at, descriptor, os.getpid(), share)
        processes = start_processes(
            name=cell,
            entrypoint=rank_main,
            args=dict.fromkeys(ranks, arguments),
            envs={local: {**common, "RANK": str(rank), "LOCAL_RANK": str(local)} for local, rank in ranks.items()},
            logs_specs=DefaultLogsSpecs(),
            start_method="fork",
        )
    # Taken before waiting: a process that has been joined is no longer among the active children.
    children = {child.pid: child for child in multiprocessing.active_children()}
    _wait(processes, share, peers, deadline)
    pids = {ranks[local]: pid for local, pid in processes.pids().items()}
    late = {rank: deadline.found[pid] for rank, pid in pids.items() if pid in deadline.found}
    return {rank: children[pid].exitcode or 0 for rank, pid in pids.items()}, late


def _store_address(
    attempt: AttemptDir, share: NodeShare, listener: socket.socket | None, addresses: list[str], deadline: Deadline
) -> dict[str, str] | None:
    """Return the environment variables with the address of the store; None when the cell was aborted first.

    InfrastructureError when this node cannot reach node 0.
    """
    if listener is not None:
        port = listener.getsockname()[1]
        here = {"MASTER_ADDR": "::1" if ":" in addresses[0] else "127.0.0.1", "MASTER_PORT": str(port)}
        if share.nodes == 1:
            return here
        rendezvous.announce(attempt, listener, addresses)
        return here | gloo_interface(addresses[0])
    announced = rendezvous.await_rendezvous(attempt, deadline.at)
    if announced is None:
        return None
    address, own_address = reach(announced.addresses, announced.port)
    return {"MASTER_ADDR": address, "MASTER_PORT": str(announced.port), **gloo_interface(own_address)}


def _wait(processes: Any, share: NodeShare, peers: _Peers | None, deadline: Deadline) -> None:
    """Wait until every rank has exited, the deadline has passed, or another node has aborted the cell.

    torch raises EOFError or UnpicklingError on the error file of a rank that was killed while writing it.
    """
    ended, elsewhere = None, False
    try:
        while ended is None and not elsewhere and (left := deadline.left_s) > 0:
            # Short waits, so that the nodes' files are polled between them without a thread.
            ended = processes.wait(timeout=min(left, rendezvous.POLL_S), period=0.05)
            elsewhere = ended is None and peers is not None and peers.check(processes)
    except (EOFError, pickle.UnpicklingError):
        processes.close()
        if peers is not None:
            peers.abort("a rank was killed while it wrote its error file")
        return
    if ended is None:
        if not elsewhere:
            deadline.wait()
        if peers is not None:
            peers.abort("the deadline passed", deadline=True)
        deadline.end()
        processes.close()
    elif ended.is_failed() and peers is not None:
        # Elastic lists all ranks that failed by then; the lowest stands for them where no rank wrote its own abort.
        local = min(ended.failures)
        peers.abort(f"exit code {ended.failures[local].exitcode}", rank=share.ranks[local])


def _log_xids(attempt: AttemptDir, failed: list[int], begun: float) -> None:
    """Append the Xid lines of the kernel log since `begun` (time.monotonic) to the logs of the ranks that failed."""
    lines = xid_lines(begun) if failed else []
    for rank in failed if lines else ():
        with appending(attempt.log(rank)) as log:
            log.write("".join(f"{line}\n" for line in lines).encode())


def _add_other_nodes(attempt: AttemptDir, endings: list[RankEnding], peers: _Peers) -> list[str]:
    """Append how the other nodes' ranks ended to `endings`; return the errors of whole nodes."""
    troubles = []
    results = peers.collect()
    for node in range(1, peers.share.nodes):
        if node in results:
            endings += results[node].ranks
            troubles += [results[node].trouble] if results[node].trouble else []
        else:
            # From the records that a lost node's ranks had flushed, without exit codes.
            endings += rank_endings(attempt, peers.share.ranks_of(node), {}, {})
            troubles.append(f"node {node} sent no heartbeats and wrote no result")
    return troubles
