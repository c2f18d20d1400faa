"""Base class of the agents of all nodes: see agent.py."""

from __future__ import annotations

import gc
import multiprocessing
import os
import secrets
import signal
import time
import traceback
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from harness.core.cell.config import CellConfig
from harness.core.errors import DriverError, InputError
from harness.core.outcomes import Missing
from harness.core.run import events
from harness.core.run.events import Event, Failed, Finished, Loaded, Started
from harness.core.run.run_dir import AttemptDir, RunDir, text_of
from harness.core.run.run_plan import read_work_order
from harness.core.secrets import redacted, secret_values
from harness.core.serialization import from_jsonable, loads
from harness.runtime.contention import Contention
from harness.runtime.coordination import rendezvous
from harness.runtime.coordination.rendezvous import Abort, HeartbeatMonitor, HeartbeatWriter, NodeShare
from harness.runtime.device.gpu_health import trouble_after
from harness.runtime.load import load_plugins, loaded
from harness.runtime.recording.errors import lacking_name

KILL_GRACE_S = 20.0  # after a cell's deadline, before its whole process group is killed
ANNOUNCING = frozenset({signal.SIGUSR1, signal.SIGUSR2})  # signals that announce the end of a job

# cell, attempt, its configuration, this node's share of the ranks, deadline (seconds since the epoch)
Running = tuple[str, int, CellConfig, NodeShare, float]


class Agent(ABC):
    """What leader and followers share: one supervisor per cell, a journal, a heartbeat."""

    trouble = ""  # why no further cell may start on this node; the leader then ends the job
    lacking: Missing | None = None  # what the stack does not have, so that no cell can run
    failed_nodes: tuple[str, ...] = ()  # hosts that the event Failed names

    def __init__(self, run: RunDir, allocation: str, node: int = 0, nodes: int = 1) -> None:
        self.run, self.allocation, self.node, self.nodes = run, allocation, node, nodes
        self.journal = run.agent_journal(allocation, node)
        self.work_order = read_work_order(run, allocation)
        ordered = self.work_order.nodes or 1
        if ordered != nodes:
            raise InputError(f"{run.submission(allocation)} is for {ordered} nodes, not for --nodes {nodes}")
        self.running: dict[BaseProcess, Running] = {}
        self.contention = Contention()
        self.heartbeat = HeartbeatWriter(rendezvous.heartbeat_file(run, allocation, node), secrets.token_hex(8))
        others = [0] if node else list(range(1, nodes))
        self.others = HeartbeatMonitor(run, allocation, others, self.work_order.silence_s or rendezvous.SILENCE_S)

    def note(self, event: Event) -> None:
        """Append an event to this agent's journal."""
        events.note(self.journal, event)

    def main(self) -> None:
        import_s = 0.0
        self.note(Started(pid=os.getpid()))
        self.heartbeat.start("loading")
        try:
            try:
                import_s = loaded()
            except DriverError as error:
                self.report(str(error))
            # A stack without a module is judged cell by cell as an error of the stack; the agent lives on to say so.
            except (ImportError, AttributeError) as error:
                self.lacking = lacking_name(error)
                if self.lacking is None:
                    raise
            begin = time.perf_counter()
            load_plugins(self.run)
            gc.freeze()  # else the first collection in every rank would write to, and so copy, all pages of the parent
            self.note(Loaded(import_s=import_s + time.perf_counter() - begin))
            self.heartbeat.tick()
            self.work()
        except BaseException as error:
            secrets_here = secret_values(os.environ)
            reason = redacted(f"{type(error).__name__}: {error}", secrets_here)
            raised = redacted(traceback.format_exc(), secrets_here)
            announced = bool(signal.sigpending() & ANNOUNCING)
            self.note(Failed(reason=reason, traceback=raised, nodes=self.failed_nodes, announced=announced))
            raise
        else:
            self.note(Finished())
        finally:
            gc.unfreeze()  # else C++ extensions report leaked objects at exit
            try:
                for process in self.running:
                    _kill(process)
            finally:
                self.heartbeat.stop()

    @abstractmethod
    def work(self) -> None:
        """Run the cells."""

    def config(self, cell: str, number: int) -> CellConfig:
        """Return a cell's configuration. Its deadline is longer than that of the file as far as others use the cores.

        Not that of a cell with an injected fault: those that hang would take most of a self-test's time.
        """
        written = from_jsonable(CellConfig, loads(text_of(self.run.attempt(cell, number).config)))
        busy = 1.0 if written.fault else self.contention.factor()
        return replace(written, deadline_s=written.deadline_s * busy)

    def fork(self, cell: str, number: int, config: CellConfig, deadline_at: float) -> None:
        """Fork the supervisor of this node's ranks of a cell."""
        from harness.runtime.supervisor import supervise

        share = replace(self.node_share(config), gpus=self.gpus_of(cell, config))
        root = str(self.run.attempt(cell, number).root)
        arguments = (root, cell, number, config, os.getpid(), deadline_at, share, self.others)
        process = multiprocessing.get_context("fork").Process(target=supervise, args=arguments)
        process.start()
        self.running[process] = (cell, number, config, share, deadline_at)

    def gpus_of(self, cell: str, config: CellConfig) -> tuple[int, ...] | None:
        """Return the indices of the GPUs of this node that the cell's ranks may use; None: all."""
        return None

    def node_share(self, config: CellConfig) -> NodeShare:
        """Return which ranks of a cell run on this node."""
        return NodeShare(
            node=self.node, nodes=self.nodes, world_size=config.layout.world_size, exclusive=config.timing.timed
        )

    def reap(self, at_most_s: float) -> None:
        """Wait for a supervisor to exit; kill those that exceed their deadline by KILL_GRACE_S."""
        limits = [deadline_at + KILL_GRACE_S for *_, deadline_at in self.running.values()]
        # Wakes for the first deadline too, or a hang would last until the next heartbeat.
        timeout = min([at_most_s, *(limit - time.time() for limit in limits)])
        wait([process.sentinel for process in self.running], timeout=max(timeout, 0.0))
        for process, (*_, deadline_at) in self.running.items():
            if time.time() > deadline_at + KILL_GRACE_S:
                _kill(process)
                process.join()
        # All at once, before GPUs are tested: a test takes seconds, in which freed places would stay empty.
        over = {process: self.running[process] for process in list(self.running) if not process.is_alive()}
        for process, (cell, number, config, _, _) in over.items():
            del self.running[process]
            self.ended(cell, number, config, process.exitcode)
        for cell, number, config, share, _ in over.values():  # each test takes a while
            if trouble := trouble_after(self.run.attempt(cell, number), config, share):
                self.report(trouble)

    def report(self, trouble: str) -> None:
        """Let no further cell start on this node; those that run may finish."""
        self.trouble = self.trouble or redacted(trouble, secret_values(os.environ))
        self.heartbeat.report(self.trouble)

    @abstractmethod
    def ended(self, cell: str, number: int, config: CellConfig, exit_code: int | None) -> None:
        """Take note that a supervisor has exited."""

    def abort(self, attempt: AttemptDir, reason: str) -> None:
        """Stop a cell on all nodes, unless it has only this one."""
        if self.nodes > 1:
            rendezvous.write_abort(attempt, Abort(node=self.node, reason=reason))


def _kill(process: BaseProcess) -> None:
    """Kill a supervisor, unless it has exited, and its ranks."""
    if process.is_alive():
        with suppress(ProcessLookupError):  # just forked: it does not lead a process group yet, and has no ranks
            os.killpg(process.pid or 0, signal.SIGKILL)
        # The group may not exist yet, or the supervisor may have left it.
        process.kill()
