"""The agent of one node of an allocation: imports torch and Megatron once, then forks cell after cell.

    python -m harness.runtime.agent RUN_DIR ALLOCATION [--node N --nodes M]

Reads submissions/<allocation>.json and each cell's config.json, writes its own journal and heartbeat (agents/) and,
through the supervisor, every cell's records and result.json. Cells with few ranks run side by side.

With several nodes, the agent of node 0 leads: it decides which cell runs when, and the others follow its journal. A
cell needs all nodes, so the leader starts no further cell once a node is lost or has a broken GPU, or Slurm announces
the end of the job (`signal` of the cluster profile). It exits when the running cells have ended, and the followers exit
with it. Its event Failed names the lost and broken nodes, so that cells without a result can run elsewhere. Exit code
0: all cells have a result; 3: something of the above; 28: the disk is full.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.errors import DiskFullError, InfrastructureError, InputError
from harness.core.hardware import AGENT_VARIABLES, GpuSlices
from harness.core.outcomes import Missing, Rejection
from harness.core.run.events import CellFinished, CellStarted, Event, Failed, Finished, Gathered, Journal
from harness.core.run.records import CellResult, CellStatus, sealed
from harness.core.run.run_dir import AttemptDir, RunDir, protect_new_files, refuse_links_below, text_of, write_json
from harness.core.serialization import from_jsonable, loads
from harness.core.text import counted
from harness.runtime.coordination import rendezvous
from harness.runtime.coordination.job_start import work_order_of
from harness.runtime.coordination.rendezvous import NodeResult
from harness.runtime.node_agent import ANNOUNCING, Agent
from harness.runtime.process import die_with, end_process, other_threads
from harness.runtime.recording.errors import lacking_name

LOOK_AHEAD = 64  # waiting cells that may start before one that does not fit; the configuration of each is read
CLOCK_TOLERANCE_S = 5.0  # a larger offset to the leader's time stamp means that the clocks disagree


class Leader(Agent):
    """The agent of node 0, or of the only node."""

    def __init__(self, run: RunDir, allocation: str, node: int = 0, nodes: int = 1) -> None:
        super().__init__(run, allocation, node, nodes)
        self.waiting = [(cell_attempt.cell, cell_attempt.attempt) for cell_attempt in self.work_order.cells]
        self.capacity = self.work_order.parallel_ranks  # ranks at once on each node
        self.lost: set[int] = set()
        self.gpus = GpuSlices(0)

    def work(self) -> None:
        if self.nodes > 1:
            self._await_followers()
        obstacle = self._obstacle()
        if self.nodes == 1 and not obstacle:  # a cell that spans nodes gets all of their GPUs
            # Imported late: it imports torch, and the agent's heartbeat must start before that takes its seconds.
            from harness.runtime.device.cuda_forks import gpu_table

            self.gpus = GpuSlices(len(gpu_table()))
        while self.running or (self.waiting and not obstacle):
            if not obstacle:
                self._start_what_fits()
            if self.running:
                self.reap(rendezvous.HEARTBEAT_S)
            self.heartbeat.tick()
            obstacle = self._obstacle()
        # After the loss of a node, the last cells may need to run elsewhere.
        if self.waiting or self.failed_nodes:
            raise InfrastructureError(f"{obstacle}; {counted(len(self.waiting), 'cell')} not started")

    def _obstacle(self) -> str:
        """Return why no more cells can start, or ''. Sets `failed_nodes`."""
        self.lost.update(self.others.silent())
        heartbeats = self.others.known()
        troubles = {node: beat.trouble for node, beat in heartbeats.items() if beat.trouble and node not in self.lost}
        hosts = {node: beat.host for node, beat in heartbeats.items()}
        if self.trouble:
            troubles[self.node], hosts[self.node] = self.trouble, self.heartbeat.host
        self.failed_nodes = tuple(hosts[node] for node in sorted(self.lost | troubles.keys()) if node in hosts)
        obstacles = []
        if self.lost:
            names = ", ".join(str(node) for node in sorted(self.lost))
            obstacles.append(f"node {names} was lost" if len(self.lost) == 1 else f"nodes {names} were lost")
        obstacles += [f"node {node}: {trouble}" for node, trouble in sorted(troubles.items())]
        # Asked instead of handled: the signals are blocked (see `prepare`), so none can interrupt a fork or a write.
        obstacles += [f"{number.name} announced the end of the job" for number in signal.sigpending() & ANNOUNCING]
        return "; ".join(obstacles)

    def _await_followers(self) -> None:
        """Wait until the agents of all nodes have loaded, then name them in the journal: they start to follow it."""
        limit = time.monotonic() + rendezvous.STARTUP_S
        while True:
            ready = {node: heartbeat for node, heartbeat in self.others.latest().items() if heartbeat.state == "ready"}
            if len(ready) == self.nodes - 1:
                break
            if time.monotonic() > limit:
                absent = sorted(set(range(1, self.nodes)) - set(ready))
                raise InfrastructureError(f"the agents of nodes {absent} did not start; is the run directory shared?")
            self.heartbeat.tick()
            time.sleep(rendezvous.POLL_S)
        # By token: a follower of an earlier start of this job may still write heartbeats, and must not take part.
        self.note(Gathered(tokens={str(node): heartbeat.token for node, heartbeat in ready.items()}))

    def _start_what_fits(self) -> None:
        """Start waiting cells in order while their ranks fit; a cell larger than the capacity runs alone."""
        for cell, number in self.waiting[:LOOK_AHEAD]:  # a copy: cells that start leave the list
            busy = sum(self.node_share(running[2]).room(self.capacity) for running in self.running.values())
            if busy >= self.capacity:
                return
            config = self.config(cell, number)
            # `continue`, not `return`: a smaller cell further back may fit in the gap.
            if busy and busy + self.node_share(config).room(self.capacity) > self.capacity:
                continue
            if not self.gpus.fits(config.device, config.layout.world_size):
                continue
            self.waiting.remove((cell, number))
            self._start(cell, number, config, self.run.attempt(cell, number))

    def gpus_of(self, cell: str, config: CellConfig) -> tuple[int, ...] | None:
        return self.gpus.take(cell, config.device, config.layout.world_size)

    def _start(self, cell: str, number: int, config: CellConfig, attempt: AttemptDir) -> None:
        if attempt.result.exists():  # the job was requeued after the attempt had ended
            self.ended(cell, number, config, None)
            return
        refused = self.lacking or self._refusal(config)
        if isinstance(refused, Rejection):
            self._write(attempt, cell, number, "rejected", refused.reason, refused)
            return
        # After the rejections, which are refusals too, but the outcome of a rule rather than an error.
        if refused:
            self._write(attempt, cell, number, "error", refused.reason, refused.rejection)
            return
        wrong = self.node_share(config).misfit(self.work_order.ranks_per_node)
        if wrong is not None:
            self._write(attempt, cell, number, "error", wrong)
            return
        # Ranks write here as this user; a link that somebody placed would make them overwrite its target.
        refuse_links_below(attempt.root)
        # An attempt that was interrupted before its result left its failure and addresses, which would end this one at
        # once.
        rendezvous.clear(attempt)
        ranks = config.layout.world_size
        self.note(CellStarted(cell=cell, attempt=number, ranks=ranks, threads=other_threads()))
        self.fork(cell, number, config, time.time() + config.deadline_s)

    def _refusal(self, config: CellConfig) -> Rejection | Missing | None:
        """Return why the cell cannot run here; None when it can."""
        try:
            from harness.runtime.refusals import refusal

            return refusal(config, self.node_share(config).size)
        except Exception as error:
            # A module that this stack lacks is a fact about the stack; any other exception is a bug of the harness.
            if lacking := lacking_name(error):
                return lacking
            raise

    def ended(self, cell: str, number: int, config: CellConfig, exit_code: int | None) -> None:
        """Note how a cell ended on this node, the first, and write its result if its supervisor did not."""
        self.gpus.release(cell)
        attempt = self.run.attempt(cell, number)
        if attempt.result.exists():
            result = from_jsonable(CellResult, loads(text_of(attempt.result)))
            self.note(CellFinished(cell=cell, attempt=number, status=result.status))
            if exit_code == 0:  # the supervisor gave up on a node that wrote no result
                # Exit code 0 means the supervisor did all it could; a node without a file then went silent during the
                # cell.
                silent = (node for node in range(1, self.nodes) if not rendezvous.node_file(attempt, node).exists())
                self.lost.update(silent)
            return
        reason = f"the cell's supervisor ended with exit code {exit_code} and wrote no result; see log/supervisor.log"
        self.abort(attempt, reason)
        self._write(attempt, cell, number, "error", reason)

    def _write(
        self,
        attempt: AttemptDir,
        cell: str,
        number: int,
        status: CellStatus,
        reason: str,
        rejection: Rejection | None = None,
    ) -> None:
        now = time.time()
        result = CellResult(
            cell=cell, attempt=number, status=status, reason=reason, rejection=rejection, started=now, finished=now
        )
        write_json(attempt.result, sealed(result))
        self.note(CellFinished(cell=cell, attempt=number, status=status))


class Follower(Agent):
    """The agent of any other node: starts the cells that the leader's journal names, and exits with the leader."""

    acknowledged = False  # the leader has named this process in its journal
    over = False  # the leader has finished or failed

    def work(self) -> None:
        tail = Journal(self.run.agent_journal(self.allocation, 0))
        limit = time.monotonic() + rendezvous.STARTUP_S
        while not self.over:
            leader_lost = self.acknowledged and bool(
                self.others.silent()
            )  # checked before the journal is read, so that its last events are not missed
            for event in tail.new_events():
                self._handle(event)
            if not self.over and (leader_lost or (not self.acknowledged and time.monotonic() > limit)):
                raise InfrastructureError(
                    "the agent of node 0 sends no heartbeats" if leader_lost else "the agent of node 0 did not start"
                )
            self.reap(rendezvous.POLL_S)
            self.heartbeat.tick()

    def _handle(self, event: Event) -> None:
        """Act on an event of the leader's journal; ignore those written before it named this process."""
        if isinstance(event, Gathered):
            self.acknowledged = event.tokens.get(str(self.node)) == self.heartbeat.token
        elif self.acknowledged and isinstance(event, CellStarted):
            self._start(event.cell, event.attempt, event.time)
        elif self.acknowledged and isinstance(event, (Finished, Failed)):
            self.over = True

    def _start(self, cell: str, number: int, begun: float) -> None:
        if self.run.attempt(cell, number).result.exists():  # the cell ended before this node read the event
            return
        config = self.config(cell, number)
        now = time.time()
        # With one clock all nodes stop a hanging cell together, and their stack dumps show the same moment.
        same_clock = abs(now - begun) < CLOCK_TOLERANCE_S
        ranks = self.node_share(config).size
        self.note(CellStarted(cell=cell, attempt=number, ranks=ranks, threads=other_threads()))
        trouble = self.lacking.reason if self.lacking else self.trouble  # which the leader had not read yet
        if trouble:
            self._give_up(cell, number, config, f"node {self.node}: {trouble}")
            return
        self.fork(cell, number, config, (begun if same_clock else now) + config.deadline_s)

    def ended(self, cell: str, number: int, config: CellConfig, exit_code: int | None) -> None:
        """Note how the supervisor of this node ended; give the cell up on all nodes if it wrote no result."""
        self.note(CellFinished(cell=cell, attempt=number, exit_code=exit_code))
        if not rendezvous.node_file(self.run.attempt(cell, number), self.node).exists():
            why = f"the supervisor of node {self.node} ended with exit code {exit_code} and wrote no result"
            self._give_up(cell, number, config, why)

    def _give_up(self, cell: str, number: int, config: CellConfig, trouble: str) -> None:
        """End a cell on all nodes, and write the result of this one, whose ranks did not run or left none."""
        from harness.runtime.rank_endings import rank_endings

        attempt = self.run.attempt(cell, number)
        self.abort(attempt, trouble)
        endings = rank_endings(attempt, self.node_share(config).ranks, {}, {})
        write_json(rendezvous.node_file(attempt, self.node), NodeResult(node=self.node, ranks=endings, trouble=trouble))


def main() -> int:
    parser = argparse.ArgumentParser(prog="harness.runtime.agent")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("allocation")
    parser.add_argument("--node", type=int, default=0, help="index of this node in the allocation, from 0")
    parser.add_argument("--nodes", type=int, default=1, help="number of nodes in the allocation")
    parser.add_argument("--attached-to", type=int, metavar="PID", help="pid of the launcher; exit when it exits")
    arguments = parser.parse_args()
    if not 0 <= arguments.node < arguments.nodes:
        parser.error(f"--node {arguments.node} is outside 0..{arguments.nodes - 1}")
    prepare(arguments.attached_to)
    run, node, nodes = RunDir(arguments.run_dir), arguments.node, arguments.nodes
    try:
        allocation = arguments.allocation if arguments.attached_to else work_order_of(run, arguments.allocation, node)
        if allocation is None:  # another start of the job, or another job, runs it
            return 0
        agent = Follower(run, allocation, node, nodes) if node else Leader(run, allocation, node, nodes)
        agent.main()
    except (InfrastructureError, InputError) as error:
        print(f"harness.runtime.agent: {error}", file=sys.stderr)
        # An exit code of its own, since the launcher must not retry on a file system that is full.
        return DiskFullError.process_exit_code if isinstance(error, DiskFullError) else error.exit_code
    return 0


def prepare(launcher: int | None) -> None:
    """Set up this process, before it imports torch. `launcher`: its pid, for an agent that ends with it."""
    if launcher:
        die_with(launcher)
    protect_new_files()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # They reach every process of a job step: blocked, they disturb none, and the leader sees that they are pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, ANNOUNCING)
    # Otherwise is_available() initialises CUDA, and forked ranks could no longer use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.update({name: value for name, value in AGENT_VARIABLES.items() if name not in os.environ})
    resource.setrlimit(
        resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
    )  # a rank's core dump may be 100 GB


if __name__ == "__main__":
    end_process(main())
