"""One rank of a cell: a process forked from the agent by torch elastic."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from harness.core.cell.config import CellConfig
from harness.core.errors import STORAGE_EXIT, DiskFullError
from harness.core.run.records import RankRecord
from harness.core.run.run_dir import AttemptDir
from harness.core.secrets import redacted, secret_values
from harness.probe.built import import_proof, other_modules
from harness.probe.run import run_probe
from harness.runtime.coordination.rendezvous import Abort, NodeShare, write_abort
from harness.runtime.deadline import DUMP
from harness.runtime.process import die_with, log_to
from harness.runtime.recording import flight_recorder
from harness.runtime.recording.recorder import Recorder


def rank_main(
    attempt_root: str,
    cell: str,
    config: CellConfig,
    deadline_at: float,
    listener: int | None,
    supervisor: int,
    share: NodeShare,
) -> None:
    """Run the probe and write a complete record, however the probe ends.

    `deadline_at`: seconds since the epoch. `listener`: descriptor of the bound socket on which rank 0 serves the
    store, None on nodes without rank 0. `supervisor`: pid of the parent. At the deadline, or earlier on DUMP when the
    deadline has passed on another node, faulthandler writes every thread's stack to the log; the supervisor kills the
    process shortly after.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # elastic's handler would turn SIGTERM into an exception
    attempt = AttemptDir(Path(attempt_root))
    die_with(supervisor)
    rank = int(os.environ["RANK"])
    log_to(attempt.log(rank))
    faulthandler.enable(sys.stderr)
    # faulthandler, not a Python handler: it works while the main thread hangs in C++.
    faulthandler.register(DUMP, sys.stderr)
    faulthandler.dump_traceback_later(max(deadline_at - time.time(), 0.01), file=sys.stderr)
    place = config.layout.coordinates(rank)
    flight = flight_recorder.watch(attempt, rank, deadline_at)
    recorder = None
    try:
        recorder = Recorder(RankRecord(cell=cell, rank=rank, place=place), attempt.record(rank))
        recorder.flush()
        _run(config, recorder, listener, attempt, share)
        _prove_imports(recorder)
        recorder.end("completed")
    except DiskFullError as error:  # not a failure of the code under test
        with suppress(OSError):  # the log is on the same disk
            print(f"rank {rank}: {error}", file=sys.stderr)
        os._exit(DiskFullError.process_exit_code)  # a normal exit would flush the log and fail
    except OSError as error:
        if recorder is not None and recorder.written == "raised":
            raise
        with suppress(OSError):
            print(f"rank {rank} could not write its record: {error}", file=sys.stderr)
        # An exit code of its own tells the supervisor that the file system failed, not the code under test.
        os._exit(STORAGE_EXIT)
    flight.cancel()
    faulthandler.cancel_dump_traceback_later()


def _run(config: CellConfig, recorder: Recorder, listener: int | None, attempt: AttemptDir, share: NodeShare) -> None:
    """Run the probe; record an exception of the code under test and raise it again."""
    tempfile.tempdir = None  # inherited from the supervisor, which may remove it before this process exits
    try:
        run_probe(config, recorder.record.place, recorder, listener)
    except DiskFullError:
        raise
    except (Exception, SystemExit) as error:  # argparse in the code under test raises SystemExit
        _prove_imports(recorder)
        raised = recorder.fail(error)
        with suppress(OSError):  # the log is where people look first
            print(raised, file=sys.stderr, flush=True)
        if share.nodes > 1:  # before connections close and the peers fail in turn
            reason = redacted(f"{type(error).__name__}: {error}", secret_values(os.environ))[:1000]
            write_abort(attempt, Abort(node=share.node, rank=recorder.record.rank, reason=reason))
        if isinstance(error, SystemExit):  # whatever its exit code, elastic must see a failure
            raise SystemExit(1) from error
        raise


def _prove_imports(recorder: Recorder) -> None:
    """Record all imported modules; only a rank's final record has them."""
    recorder.record.imports, recorder.record.modules = import_proof(), other_modules()
