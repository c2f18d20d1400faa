"""The options of `harness run`. Fast to import."""

from __future__ import annotations

import argparse

from harness.app.arguments import (
    add_cluster,
    add_history,
    add_matrix,
    add_no_history,
    add_notify,
    add_only,
    add_run_parent,
    add_view,
    count,
    hours,
)


def add(run: argparse.ArgumentParser) -> None:
    """First those that choose and change cells."""
    add_matrix(run)
    add_only(run, "CELL", "run only cells with this id, name or shell-style pattern (repeatable)")
    run.add_argument(
        "-k",
        dest="expression",
        default="",
        metavar="EXPRESSION",
        help="run only cells whose id contains these texts, with and, or, not: 'tp2 and not sft'",
    )
    run.add_argument("--failed", action="store_true", help="run only the cells that failed in the matrix's newest run")
    run.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SETTING",
        help="use this value instead of the matrix file's: train.steps=5 or 'matrix.tp=[1, 2]' (repeatable)",
    )
    run.add_argument(
        "--fault",
        metavar="FAULT",
        help="break the cells on purpose by this fault of the self-test, to see what the reports show",
    )
    _ways(run)


def _ways(run: argparse.ArgumentParser) -> None:
    """Where the run goes, and when it ends."""
    add_cluster(run)
    add_run_parent(run, default=None)
    add_history(run)
    add_no_history(run)
    add_notify(run)
    add_view(run)
    run.add_argument(
        "--maxfail",
        type=count,
        metavar="N",
        help="stop once N cells have failed; `resume` runs the others",
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would be started, start nothing; for a cluster, also write the job files",
    )
    run.add_argument("--detach", action="store_true", help="submit the jobs to the cluster and exit")
    run.add_argument(
        "--bisect",
        action="store_true",
        help="exit codes for git bisect run: 125 to skip a commit that cannot be judged, 128 to abort",
    )
    run.add_argument(
        "--max-gpu-hours", type=hours, metavar="H", help="refuse a plan whose jobs may cost more GPU-hours than this"
    )
