"""The command line. Heavy modules are imported inside the commands, so that --help answers at once."""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
from harness.app import plugins, process, run_options
from harness.app.arguments import (
    MATRIX,
    RUN,
    add_cluster,
    add_history,
    add_json,
    add_matrix,
    add_no_history,
    add_notify,
    add_only,
    add_run,
    add_run_parent,
    add_view,
    count,
    layer_number,
    set_view,
)
from harness.app.bisect import options as bisect_options
from harness.app.commands import compare, history
from harness.app.completers import VARIABLE, complete
from harness.app.dispatch import dispatch
from harness.app.parser import Parser
from harness.app.pipeline import announce
from harness.app.process import end_on_signals
from harness.core.errors import HarnessError, InputError
from harness.core.outcomes import EXIT_ABORT, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_MEANINGS, EXIT_SKIP, EXIT_UNDECIDED
from harness.infra import screen
from harness.infra.inputs.files import matrix_path
from harness.infra.screen import flush_streams, own_streams

# Plans and reports allocate many long-lived objects, which the default threshold (700 or 2,000) scans over and over.
_GARBAGE_AFTER = 100_000
_WITHOUT_PLUGINS = ("completion", "list")
_EXIT_CODES = "exit codes:\n" + "".join(f"  {code:<3}  {meaning}\n" for code, meaning in EXIT_MEANINGS.items())


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="harness",
        description="Launch and validate sequence packing in Megatron training.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"harness {harness.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    init = commands.add_parser("init", help="write a first matrix for this machine, and a profile of its cluster")
    init.add_argument("folder", type=Path, nargs="?", default=Path(), metavar="DIR", help="folder (default: this one)")
    run_options.add(commands.add_parser("run", help="run a matrix and judge it"))
    _bisect_options(commands.add_parser("bisect", help="find the first bad, or good, commit or release"))
    plan = commands.add_parser("plan", help="show cells, rejected combinations and cost without running")
    add_matrix(plan)
    add_cluster(plan)
    add_json(plan)
    plan.add_argument("--all", action="store_true", help="print all rows of long tables")
    verify = commands.add_parser("verify", help="check matrix files without running")
    verify.add_argument("matrix", type=matrix_path, nargs="+", metavar="MATRIX", help=MATRIX)
    add_json(verify)
    completion = commands.add_parser("completion", help="print the script that completes words in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    commands.add_parser("schema", help="print the JSON Schema of matrix files, for editors")
    report = commands.add_parser("report", help="judge a finished run again and write its reports; trains nothing")
    add_run(report)
    add_run_parent(report)
    add_history(report)
    add_no_history(report)
    add_notify(report)
    add_view(report)
    _run_commands(commands)
    compare.add_parser(commands)
    history.add_parser(commands)
    history.add_index_parser(commands)
    selftest = commands.add_parser("selftest", help="inject known faults and check that each is caught")
    add_only(selftest, "FAULT", "inject only this fault (repeatable)")
    add_run_parent(selftest)
    text = "inject faults in upstream's code instead: trainers, adapters, images, rollouts, scheduler; in stacks"
    selftest.add_argument("--trainers", action="store_true", help=text)
    selftest.add_argument("--list", action="store_true", help="describe the faults, inject none")
    return parser


def _run_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Commands on an existing run, usable from any terminal."""
    for name, text in (
        ("resume", "continue a run whose launcher has ended: follow its jobs, or run the cells without a result"),
        ("status", "show the progress of a run"),
        ("cancel", "end the jobs of a run on a cluster"),
    ):
        command = commands.add_parser(name, help=text)
        add_run(command)
        add_run_parent(command)
        if name == "status":
            add_json(command)
        if name == "resume":
            add_history(command)
            add_no_history(command)
            add_notify(command)
            add_view(command)
            command.add_argument("--errors", action="store_true", help="also retry the cells that ended as ERROR")
    listed = commands.add_parser("list", help="list the runs of a folder, also unfinished ones, stacks or plug-ins")
    what = "runs, the stacks that come with the harness, or installed plug-ins (default: %(default)s)"
    listed.add_argument("what", nargs="?", choices=("runs", "stacks", "plugins"), default="runs", help=what)
    listed.add_argument("--limit", type=count, default=20, metavar="N", help="the newest N (default: %(default)s)")
    add_json(listed)
    add_run_parent(listed)
    _explain_options(commands.add_parser("explain", help="say what a rule, check, failure class, key or cell is about"))
    _shrink_options(commands.add_parser("shrink", help="find the smallest layout in which a failed cell still fails"))
    logs = commands.add_parser("logs", help="show the last lines of the logs of a run")
    add_run(logs)
    logs.add_argument(
        "cell", metavar="CELL", nargs="?", help="cell by id, name or pattern; if omitted, the logs of jobs and agents"
    )
    which = logs.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="N", help="the whole log of this rank")
    which.add_argument("-f", "--follow", action="store_true", help="print what is added, until the run has ended")
    which.add_argument("--errors", action="store_true", help="the traceback of the rank that failed first")
    add_run_parent(logs)
    doctor = commands.add_parser("doctor", help="check that this machine, or a cluster, can run cells")
    doctor.add_argument(
        "--cluster", metavar="NAME", default="local", help="cluster profile by name or path (default: %(default)s)"
    )
    add_run_parent(doctor, default=None)
    add_json(doctor)


def _explain_options(explain: argparse.ArgumentParser) -> None:
    explain.add_argument(
        "word", metavar="WORD", help="a name from reports or the documentation, or a cell of RUN; or RUN, before CELL"
    )
    explain.add_argument("cell", metavar="CELL", nargs="?", help="cell of the run WORD, by id, name or pattern")
    explain.add_argument("--run", default="latest", metavar="RUN", help=f"the run of a cell: {RUN} (default: latest)")
    explain.add_argument(
        "--operations",
        action="store_true",
        help="train the cell again, and show the operations of a layer in forward passes beside those of the oracle",
    )
    text = "the layer, from 1; 0 is the embedding (default: the first that differs)"
    explain.add_argument("--layer", type=layer_number, metavar="N", help=text)
    add_json(explain)
    add_run_parent(explain)


def _shrink_options(shrink: argparse.ArgumentParser) -> None:
    add_run(shrink)
    shrink.add_argument("cell", metavar="CELL", help="failed cell by id, name or pattern")
    shrink.add_argument(
        "--rounds", type=count, default=20, metavar="N", help="maximum number of rounds (default: %(default)s)"
    )
    shrink.add_argument(
        "--check", metavar="NAME", help="the check that must still fail (default: that of the first finding)"
    )
    shrink.add_argument(
        "--issue",
        action="store_true",
        help="write issue.md, a report for the project that failed, and a standalone script",
    )
    add_run_parent(shrink)


def _bisect_options(bisect: argparse.ArgumentParser) -> None:
    add_matrix(bisect)
    add_only(bisect, "CELL", "bisect only cells with this id, name or shell-style pattern (repeatable)")
    bisect_options.add(bisect)
    add_cluster(bisect)
    add_run_parent(bisect, default=None, what="parent of the bisection's folder")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are printed to stderr."""
    gc.set_threshold(_GARBAGE_AFTER)
    if argv is None:
        own_streams()
        end_on_signals()
    words = list(sys.argv[1:] if argv is None else argv)
    return _for_git(words) if "--bisect" in words else _flushed(words)


def _for_git(words: list[str]) -> int:
    """Exit code for `git bisect run`: 1 to 127 except 125 mean a bad commit, so only a failed check returns 1."""
    try:
        code = _flushed(words)
    except SystemExit as error:  # of argparse
        code = error.code if isinstance(error.code, int) else EXIT_INPUT
    return {EXIT_INPUT: EXIT_ABORT, EXIT_UNDECIDED: EXIT_SKIP}.get(code, code)


def _flushed(words: list[str]) -> int:
    code = _main(words)
    if problem := flush_streams():
        code = code or EXIT_UNDECIDED  # the verdict was not printed
        screen.err(f"harness: {problem}")
    return code


def _main(words: list[str]) -> int:
    arguments = argparse.Namespace()
    command = ["harness", *words]
    try:
        parser = build_parser()
        if VARIABLE in os.environ:
            complete(parser)
        parser.parse_args(words, arguments)
        set_view(arguments)
        from harness.core.run.run_dir import protect_new_files  # not for --help

        protect_new_files()
        if arguments.command not in _WITHOUT_PLUGINS:
            plugins.active()
        return dispatch(arguments, announce.without_secrets(command))
    except InputError as error:
        from harness.infra.console import print_problems

        print_problems(error)
        return _ended(arguments, error)
    except HarnessError as error:
        screen.err(f"harness: {error}")
        return _ended(arguments, error)
    except KeyboardInterrupt:
        screen.err(f"harness: interrupted; run again with: {shlex.join(announce.without_secrets(command))}")
        return EXIT_INTERRUPTED
    except Exception as error:
        found = process.uncaught(error)
        screen.err(f"harness: {found}")
        return _ended(arguments, found)


def _ended(arguments: argparse.Namespace, error: HarnessError) -> int:
    """Exit code of a run that could not be judged; the receivers of --notify get it too."""
    if receivers := getattr(arguments, "notify", None):
        what = str(getattr(arguments, "matrix", None) or arguments.run)
        announce.announce_end(receivers, what, str(error), error.exit_code)
    return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
