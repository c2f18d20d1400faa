"""The agent of one node of an allocation: imports torch and Megatron once, then forks cell after cell.

    python -m harness.node.agent RUN_DIR ALLOCATION [--node N]

Reads submissions/<allocation>.json and each cell's config.json, writes its own journal (agents/) and, through the
supervisor, every cell's records and result.json. Cells with few ranks run side by side.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from harness.edge.run_dir import AttemptDir, RunDir, append_line, write_json
from harness.node.process import die_with
from harness.words.cell import CellConfig
from harness.words.jsonable import from_jsonable, loads
from harness.words.outcomes import Rejection
from harness.words.records import CellResult

KILL_GRACE_S = 20.0  # after a cell's deadline, before its whole process group is killed


class Agent:
    def __init__(self, run: RunDir, allocation: str, node: int) -> None:
        self.run = run
        self.journal = run.agent_journal(allocation, node)
        order = loads(run.submission(allocation).read_text(encoding="utf-8"))
        self.waiting: list[tuple[str, int]] = [(item["cell"], item["attempt"]) for item in order["cells"]]
        self.capacity: int = order["parallel_ranks"]
        self.running: dict[BaseProcess, tuple[str, int, CellConfig, float]] = {}

    def say(self, event: str, **facts: Any) -> None:
        append_line(self.journal, {"time": time.time(), "event": event, **facts})

    def main(self) -> None:
        begin = time.perf_counter()
        self.say("started", pid=os.getpid())
        _load()
        gc.freeze()  # else the first collection in every rank would touch, and so copy, all pages of the parent
        self.say("loaded", import_s=time.perf_counter() - begin)
        try:
            while self.waiting or self.running:
                self._start_what_fits()
                self._reap()
        finally:
            for process in self.running:
                os.killpg(process.pid or 0, signal.SIGKILL)
        self.say("finished")

    def _start_what_fits(self) -> None:
        """Start waiting cells in order while their ranks fit; a cell larger than the capacity runs alone."""
        for cell, number in list(self.waiting):
            attempt = self.run.attempt(cell, number)
            config = from_jsonable(CellConfig, loads(attempt.config.read_text(encoding="utf-8")))
            busy = sum(running[2].layout.world_size for running in self.running.values())
            if busy and busy + config.layout.world_size > self.capacity:
                continue
            self.waiting.remove((cell, number))
            self._start(cell, number, config, attempt)

    def _start(self, cell: str, number: int, config: CellConfig, attempt: AttemptDir) -> None:
        from harness.node.data_paths.table import DATA_PATHS
        from harness.node.supervisor import supervise

        reason = DATA_PATHS[config.data_path].unavailable()
        if reason is not None:
            rejection = Rejection(rule="stack.data_path", reason=reason, source="the stack under test")
            self._write(attempt, cell, number, "rejected", reason, rejection)
            return
        self.say("cell_started", cell=cell, attempt=number, ranks=config.layout.world_size)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=supervise, args=(str(attempt.root), cell, number, config, os.getpid()))
        process.start()
        self.running[process] = (cell, number, config, time.monotonic())

    def _reap(self) -> None:
        """Wait for a supervisor to end, killing those that outlive their deadline by far."""
        if not self.running:
            return
        limits = [begun + config.deadline_s + KILL_GRACE_S for _, _, config, begun in self.running.values()]
        wait([process.sentinel for process in self.running], timeout=max(min(limits) - time.monotonic(), 0.0))
        for process, (cell, number, config, begun) in list(self.running.items()):
            if process.is_alive() and time.monotonic() > begun + config.deadline_s + KILL_GRACE_S:
                os.killpg(process.pid or 0, signal.SIGKILL)
                process.join()
            if process.is_alive():
                continue
            del self.running[process]
            attempt = self.run.attempt(cell, number)
            if attempt.result.exists():
                result = from_jsonable(CellResult, loads(attempt.result.read_text(encoding="utf-8")))
                self.say("cell_finished", cell=cell, attempt=number, status=result.status)
            else:
                reason = f"the cell's supervisor ended with exit code {process.exitcode} and left no result"
                self._write(attempt, cell, number, "error", reason)

    def _write(
        self, attempt: AttemptDir, cell: str, number: int, status: str, reason: str, rejection: Rejection | None = None
    ) -> None:
        now = time.time()
        result = CellResult(
            cell=cell, attempt=number, status=status, reason=reason, rejection=rejection, started=now, finished=now
        )
        write_json(attempt.result, result)
        self.say("cell_finished", cell=cell, attempt=number, status=status)


def _load() -> None:
    """Import everything a rank needs, so that forked ranks start at once. CUDA stays untouched."""
    from harness.node.probe.imports import import_all

    import_all()
    import harness.node.supervisor  # noqa: F401  - loads the probe with the code under test


def main() -> int:
    parser = argparse.ArgumentParser(prog="harness.node.agent")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("allocation")
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--attached-to", type=int, metavar="PID", help="the launcher; end when it ends")
    arguments = parser.parse_args()
    if arguments.attached_to:
        die_with(arguments.attached_to)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # torch must not start CUDA to answer is_available(), or forked ranks could not use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    agent = Agent(RunDir(arguments.run_dir), arguments.allocation, arguments.node)
    try:
        agent.main()
    except BaseException:
        agent.say("failed", traceback=traceback.format_exc())
        raise
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
