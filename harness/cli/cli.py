"""The command line: from its words to a command. Heavy modules are imported when it runs, so that --help is quick."""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
from harness.campaign import announce, plugins
from harness.campaign.options import (
    CLUSTER_JOBS,
    RUN_PARENT,
    VerdictOptions,
    add_option,
    add_options,
    count,
    layer_number,
    run_options,
)
from harness.cli.arguments import (
    COMPLETION_VARIABLE,
    MATRIX_TEXT,
    RUN_TEXT,
    Parser,
    add_from,
    add_json,
    add_matrix,
    add_run,
    add_run_options,
    add_run_parent,
    add_view,
    complete,
    completion_script,
    set_view,
)
from harness.cli.commands import compare, history
from harness.core.errors import HarnessError, InputError, Problem
from harness.core.outcomes import (
    EXIT_ABORT,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_MEANINGS,
    EXIT_PASS,
    EXIT_SKIP,
    EXIT_UNDECIDED,
)
from harness.infra import process, screen
from harness.infra.files import matrix_path
from harness.infra.process import end_on_signals
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
    text = (
        "write the matrix for a training run: its command, script, log or configuration; - reads standard input, "
        "recipe:NAME a recipe of Megatron-Bridge"
    )
    add_from(init, text)
    add_run_options(commands.add_parser("run", help="run a matrix and judge it"))
    _bisect_options(commands.add_parser("bisect", help="find the first bad, or good, commit or release"))
    plan = commands.add_parser("plan", help="show cells, rejected combinations and cost without running")
    add_matrix(plan)
    add_option(plan, "cluster")
    add_json(plan)
    plan.add_argument("--all", action="store_true", help="print all rows of long tables")
    verify = commands.add_parser("verify", help="check matrix files without running")
    verify.add_argument("matrix", type=matrix_path, nargs="+", metavar="MATRIX", help=MATRIX_TEXT)
    text = "also make the stacks, and let upstream's own parser check the arguments of cells"
    verify.add_argument("--ask", action="store_true", help=text)
    add_json(verify)
    _contracts_options(commands.add_parser("contracts", help="check what upstream promises about packing, in stacks"))
    completion = commands.add_parser("completion", help="print the script that completes words in a shell")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    commands.add_parser("schema", help="print the JSON Schema of matrix files, for editors")
    report = commands.add_parser("report", help="judge a finished run again and write its reports; trains nothing")
    add_run(report)
    add_run_parent(report)
    add_options(report, VerdictOptions)
    add_view(report)
    _run_commands(commands)
    compare.add_parser(commands)
    history.add_parser(commands)
    history.add_index_parser(commands)
    selftest = commands.add_parser("selftest", help="inject known faults and check that each is caught")
    add_option(selftest, "only", metavar="FAULT", help="inject only this fault (repeatable)")
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
            add_options(command, VerdictOptions)
            add_view(command)
            command.add_argument("--errors", action="store_true", help="also retry the cells that ended as ERROR")
    listed = commands.add_parser("list", help="list runs, finished or not, stacks, projects or plug-ins")
    what = "runs, stacks that come with the harness, projects that stacks check out, or plug-ins (default: %(default)s)"
    listed.add_argument("what", nargs="?", choices=("runs", "stacks", "projects", "plugins"), default="runs", help=what)
    listed.add_argument("--limit", type=count, metavar="N", help="the newest N runs (default: 20)")
    add_json(listed)
    add_run_parent(listed, default=argparse.SUPPRESS)
    _explain_options(commands.add_parser("explain", help="describe a rule, check, failure class, key or cell"))
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
    add_option(doctor, "cluster", default="local", help="cluster profile by name or path (default: %(default)s)")
    add_option(doctor, "run_dir")
    add_json(doctor)


def _contracts_options(contracts: argparse.ArgumentParser) -> None:
    text = f"{MATRIX_TEXT}, whose stacks are asked; or a recipe of `harness list stacks`"
    contracts.add_argument("names", nargs="+", metavar="MATRIX_OR_RECIPE", help=text)
    contracts.add_argument(
        "--stack", action="append", default=[], metavar="NAME", help="ask only this stack of the matrix (repeatable)"
    )
    text = "run only this suite: refusals or upstream_tests (repeatable; default: both)"
    contracts.add_argument("--suite", action="append", default=[], metavar="SUITE", help=text)
    contracts.add_argument(
        "-k", dest="expression", default="", metavar="EXPRESSION", help="run only tests that pytest's -k chooses"
    )
    contracts.add_argument("--junit", type=Path, metavar="FILE", help="write the results as JUnit XML")


def _explain_options(explain: argparse.ArgumentParser) -> None:
    explain.add_argument(
        "word", metavar="WORD", help="a name from reports or the documentation, or a cell of RUN; or RUN, before CELL"
    )
    explain.add_argument("cell", metavar="CELL", nargs="?", help="cell of the run WORD, by id, name or pattern")
    explain.add_argument(
        "--run", default="latest", metavar="RUN", help=f"the run of a cell: {RUN_TEXT} (default: latest)"
    )
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
    add_option(bisect, "only", help="bisect only cells with this id, name or shell-style pattern (repeatable)")
    _add_search_options(bisect)
    add_option(bisect, "cluster")
    where = f"parent of the bisection's folder (default: the profile's run_dir, else {RUN_PARENT})"
    add_option(bisect, "run_dir", help=where)


def _add_search_options(bisect: argparse.ArgumentParser) -> None:
    searched = bisect.add_mutually_exclusive_group(required=True)
    searched.add_argument("--repo", metavar="PATH", help="clone (or URL) whose commits are searched")
    searched.add_argument("--package", metavar="NAME", help="package whose releases are searched")
    for end, shows in (("good", "every chosen cell passes"), ("bad", "a chosen cell fails")):
        bisect.add_argument(f"--{end}", required=True, metavar="REF", help=f"commit or release at which {shows}")
    bisect.add_argument(
        "--find",
        choices=("introduced", "fixed"),
        default="introduced",
        help="introduced: find the first bad point (default); fixed: the first good one",
    )
    bisect.add_argument("--paths", nargs="+", default=[], metavar="P", help="skip commits that touch none of these")
    bisect.add_argument("--first-parent", action="store_true", help="follow only the first parent of merges")
    bisect.add_argument("--pre", action="store_true", help="include pre-releases")
    bisect.add_argument(
        "--no-shrink",
        action="store_true",
        help="skip the smallest layout, the confirmation by revert, issue.md and reproducers",
    )
    bisect.add_argument(
        "--run", dest="setup", default="", metavar="COMMAND", help="command to run once in each commit's worktree"
    )
    bisect.add_argument(
        "--nested", default="", metavar="NAME", help="submodule or package to search next, if the found commit moved it"
    )
    bisect.add_argument("--fresh", action="store_true", help="ignore the verdicts of earlier bisections")
    bisect.add_argument(
        "--jobs",
        type=count,
        metavar="K",
        help=f"points to judge at once (default: 1 here, {CLUSTER_JOBS} on a cluster)",
    )


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
        if COMPLETION_VARIABLE in os.environ:
            complete(parser)
        parser.parse_args(words, arguments)
        set_view(arguments)
        from harness.core.run.run_dir import protect_new_files  # not for --help

        protect_new_files()
        if arguments.command not in _WITHOUT_PLUGINS:
            plugins.active()
        if (matrix := getattr(arguments, "matrix", None)) and arguments.command != "bisect":
            from harness.inputs.working_tree import matrix_here

            arguments.matrix = [*map(matrix_here, matrix)] if isinstance(matrix, list) else matrix_here(matrix)
        return dispatch(arguments, announce.without_secrets(command))
    except InputError as error:
        from harness.reporting.console import print_problems

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


def dispatch(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the command; the modules that it needs are imported here, not for --help."""
    if arguments.command in _READING:
        return _READING[arguments.command](arguments)
    if arguments.command == "bisect":
        return _bisect(arguments, command)
    from harness.cli.commands import inspect, run

    options = run_options(arguments)
    if arguments.command == "run":
        return run.run(_matrix(arguments), options, command).code
    if arguments.command == "resume":
        return run.resume(arguments.run, arguments.run_dir, errors=arguments.errors, options=options).code
    return inspect.report(arguments.run, arguments.run_dir, options).code


def _matrix(arguments: argparse.Namespace) -> Path:
    """Return the matrix that the command line names, or the one of the training run that it names."""
    from harness.cli.commands.machine import matrix_from

    if (arguments.matrix is None) == (arguments.source is None):
        hint = "e.g. `harness run gate`, or `harness run --from train.sh`"
        raise InputError(Problem(message="needs a matrix, or a training run with --from, and not both", hint=hint))
    matrix: Path = arguments.matrix or matrix_from(arguments.source, execute=arguments.execute)
    return matrix


def _init(arguments: argparse.Namespace) -> int:
    from harness.cli.commands.machine import init

    return init(arguments.folder, arguments.source, execute=arguments.execute)


def _plan(arguments: argparse.Namespace) -> int:
    from harness.cli.commands import plan

    return plan.plan(arguments.matrix, as_json=arguments.json, all_rows=arguments.all, cluster=arguments.cluster)


def _verify(arguments: argparse.Namespace) -> int:
    from harness.cli.commands import plan

    return plan.verify(arguments.matrix, as_json=arguments.json, ask=arguments.ask)


def _contracts(arguments: argparse.Namespace) -> int:
    from harness.cli.commands.contracts import contracts

    return contracts(
        arguments.names,
        only=arguments.stack,
        suites=arguments.suite,
        expression=arguments.expression,
        junit=arguments.junit,
    )


def _completion(arguments: argparse.Namespace) -> int:
    screen.data(completion_script(arguments.shell))
    return EXIT_PASS


def _schema(_: argparse.Namespace) -> int:
    from harness.cli.commands import plan

    return plan.schema()


def _status(arguments: argparse.Namespace) -> int:
    from harness.cli.commands import inspect

    return inspect.status(arguments.run, arguments.run_dir, as_json=arguments.json)


def _cancel(arguments: argparse.Namespace) -> int:
    from harness.cli.commands import inspect

    return inspect.cancel(arguments.run, arguments.run_dir)


def _logs(arguments: argparse.Namespace) -> int:
    from harness.cli.commands import inspect

    if arguments.follow:
        return inspect.follow(arguments.run, arguments.run_dir, arguments.cell)
    if arguments.errors:
        return inspect.errors(arguments.run, arguments.run_dir, arguments.cell)
    return inspect.logs(arguments.run, arguments.run_dir, arguments.cell, arguments.rank)


def _doctor(arguments: argparse.Namespace) -> int:
    from harness.cli.commands import machine

    return machine.doctor(arguments.cluster, arguments.run_dir, as_json=arguments.json)


def _selftest(arguments: argparse.Namespace) -> int:
    from harness.triage import selftest

    return (
        selftest.list_faults()
        if arguments.list
        else selftest.run(arguments.only, arguments.run_dir, trainers=arguments.trainers)
    )


def _list(arguments: argparse.Namespace) -> int:
    from harness.cli.commands import listing

    parent = getattr(arguments, "run_dir", None)
    if arguments.what == "runs":
        return listing.list_runs(parent or Path(RUN_PARENT), limit=arguments.limit or 20, as_json=arguments.json)
    for option, given in (("--json", arguments.json), ("--limit", arguments.limit), ("--run-dir", parent)):
        if given:
            hint = "; `harness explain RECIPE` shows the layers of a stack" if arguments.what == "stacks" else ""
            raise InputError(f"{option} of `harness list` is for runs, not for {arguments.what}{hint}")
    others = {"stacks": listing.list_stacks, "projects": listing.list_projects, "plugins": listing.list_plugins}
    return others[arguments.what]()


def _explain(arguments: argparse.Namespace) -> int:
    from harness.cli.commands.explain import explain

    run, word = (arguments.word, arguments.cell) if arguments.cell else (arguments.run, arguments.word)
    if arguments.operations:
        from harness.triage.operations import explain_operations

        return explain_operations(run, word, arguments.run_dir, layer=arguments.layer, as_json=arguments.json)
    if arguments.json or arguments.layer is not None:
        raise InputError("--layer and --json of `harness explain` need --operations")
    return explain(word, run, arguments.run_dir)


def _shrink(arguments: argparse.Namespace) -> int:
    from harness.triage.shrink.command import shrink

    return shrink(
        arguments.run,
        arguments.cell,
        arguments.run_dir,
        rounds=arguments.rounds,
        check=arguments.check,
        issue=arguments.issue,
    )


def _bisect(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the command; returns its exit code."""
    from harness.reporting.bisection import Find
    from harness.triage.bisect.command import BisectRequest, bisect

    return bisect(
        BisectRequest(
            matrix=arguments.matrix,
            good=arguments.good,
            bad=arguments.bad,
            repository=arguments.repo,
            package=arguments.package,
            only=arguments.only,
            find=Find(arguments.find),
            paths=arguments.paths,
            first_parent=arguments.first_parent,
            pre=arguments.pre,
            setup=arguments.setup,
            nested=arguments.nested,
            fresh=arguments.fresh,
            jobs=arguments.jobs,
            cluster=arguments.cluster,
            run_parent=arguments.run_dir,
            shrink=not arguments.no_shrink,
            command=command,
        )
    )


# The commands that start no run, and judge none.
_READING: dict[str, Callable[[argparse.Namespace], int]] = {
    "init": _init,
    "plan": _plan,
    "verify": _verify,
    "schema": _schema,
    "contracts": _contracts,
    "completion": _completion,
    "status": _status,
    "cancel": _cancel,
    "logs": _logs,
    "list": _list,
    "explain": _explain,
    "doctor": _doctor,
    "compare": compare.run,
    "history": history.run,
    "index": history.write_index,
    "shrink": _shrink,
    "selftest": _selftest,
}


if __name__ == "__main__":
    raise SystemExit(main())
