"""One rank of a cell: a process forked from the agent by torch elastic."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from harness.edge.run_dir import AttemptDir
from harness.node.probe.run import run_probe
from harness.node.process import die_with, log_to
from harness.node.recorder import Recorder
from harness.words.cell import CellConfig
from harness.words.records import RankRecord


def rank_main(
    attempt_root: str, cell: str, config: CellConfig, deadline_at: float, listener: int, supervisor: int
) -> None:
    """Run the probe and leave a whole record, however it ends. `deadline_at` in seconds since the epoch.

    `listener` is the bound socket on which rank 0 serves the store, `supervisor` the pid of the parent. At the
    deadline the C-level watchdog of faulthandler writes every thread's stack to the log; the supervisor ends the
    process shortly after.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # elastic's handler would pass a kill off as an exception
    attempt = AttemptDir(Path(attempt_root))
    die_with(supervisor)
    rank = int(os.environ["RANK"])
    log_to(attempt.log(rank))
    faulthandler.enable(sys.stderr)
    faulthandler.dump_traceback_later(max(deadline_at - time.time(), 0.01), file=sys.stderr)
    place = config.layout.coordinates(rank)
    recorder = Recorder(RankRecord(cell=cell, rank=rank, place=place), attempt.record(rank))
    recorder.flush()
    try:
        run_probe(config, place, recorder, listener)
    except Exception as error:
        recorder.fail(error)
        raise
    recorder.end("completed")
    faulthandler.cancel_dump_traceback_later()
