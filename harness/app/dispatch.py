"""From the words of a command line to the command that they name."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from harness.app.arguments import RUN_PARENT
from harness.app.bisect import options as bisect_options
from harness.app.commands import compare, history
from harness.core.errors import InputError


def dispatch(arguments: argparse.Namespace, command: list[str]) -> int:
    """Run the command; the modules that it needs are imported here, not for --help."""
    if arguments.command in _READING:
        return _READING[arguments.command](arguments)
    if arguments.command == "bisect":
        return bisect_options.run(arguments, command)
    from harness.app.commands import inspect, run
    from harness.app.pipeline.finalize import FinalizeOptions
    from harness.app.pipeline.plan_run import PlanRequest

    options = FinalizeOptions(
        record=not arguments.no_history,
        history=arguments.history,
        notify=tuple(arguments.notify or ()),
        for_git=getattr(arguments, "bisect", False),
        most_failures=getattr(arguments, "maxfail", None),
    )
    if arguments.command == "resume":
        return run.resume(arguments.run, arguments.run_dir, errors=arguments.errors, options=options)
    if arguments.command == "report":
        return inspect.report(arguments.run, arguments.run_dir, options)
    request = PlanRequest(
        matrix=arguments.matrix,
        only=[*arguments.only, *_failed(arguments)],
        settings=arguments.set,
        expression=arguments.expression,
        fault=arguments.fault,
        command=command,
        cluster=arguments.cluster,
    )
    return run.run(
        request,
        arguments.run_dir,
        dry_run=arguments.dry_run,
        max_gpu_hours=arguments.max_gpu_hours,
        detach=arguments.detach,
        options=options,
    )


def _failed(arguments: argparse.Namespace) -> list[str]:
    if not arguments.failed:
        return []
    from harness.app.selection import failed_cells

    return failed_cells(arguments.matrix, arguments.run_dir or RUN_PARENT)


def _init(arguments: argparse.Namespace) -> int:
    from harness.app.commands.machine import init

    return init(arguments.folder)


def _plan(arguments: argparse.Namespace) -> int:
    from harness.app.commands import plan

    return plan.plan(arguments.matrix, as_json=arguments.json, all_rows=arguments.all, cluster=arguments.cluster)


def _verify(arguments: argparse.Namespace) -> int:
    from harness.app.commands import plan

    return plan.verify(arguments.matrix, as_json=arguments.json)


def _completion(arguments: argparse.Namespace) -> int:
    from harness.app.completers import completion

    return completion(arguments.shell)


def _schema(_: argparse.Namespace) -> int:
    from harness.app.commands import plan

    return plan.schema()


def _status(arguments: argparse.Namespace) -> int:
    from harness.app.commands import inspect

    return inspect.status(arguments.run, arguments.run_dir, as_json=arguments.json)


def _cancel(arguments: argparse.Namespace) -> int:
    from harness.app.commands import inspect

    return inspect.cancel(arguments.run, arguments.run_dir)


def _logs(arguments: argparse.Namespace) -> int:
    from harness.app.commands import inspect

    if arguments.follow:
        return inspect.follow(arguments.run, arguments.run_dir, arguments.cell)
    if arguments.errors:
        return inspect.errors(arguments.run, arguments.run_dir, arguments.cell)
    return inspect.logs(arguments.run, arguments.run_dir, arguments.cell, arguments.rank)


def _doctor(arguments: argparse.Namespace) -> int:
    from harness.app.commands import machine

    return machine.doctor(arguments.cluster, arguments.run_dir, as_json=arguments.json)


def _selftest(arguments: argparse.Namespace) -> int:
    from harness.app.commands import selftest

    return (
        selftest.list_faults()
        if arguments.list
        else selftest.run(arguments.only, arguments.run_dir, trainers=arguments.trainers)
    )


def _list(arguments: argparse.Namespace) -> int:
    if arguments.what == "stacks":
        from harness.app.commands.explain import list_stacks

        return list_stacks(as_json=arguments.json)
    if arguments.what == "plugins":
        from harness.app.commands.listing import list_plugins

        return list_plugins(as_json=arguments.json)
    from harness.app.commands.listing import list_runs

    return list_runs(arguments.run_dir, limit=arguments.limit, as_json=arguments.json)


def _explain(arguments: argparse.Namespace) -> int:
    from harness.app.commands.explain import explain

    run, word = (arguments.word, arguments.cell) if arguments.cell else (arguments.run, arguments.word)
    if arguments.operations:
        from harness.app.commands.operations import explain_operations

        return explain_operations(run, word, arguments.run_dir, layer=arguments.layer, as_json=arguments.json)
    if arguments.json or arguments.layer is not None:
        raise InputError("--layer and --json of `harness explain` need --operations")
    return explain(word, run, arguments.run_dir)


def _shrink(arguments: argparse.Namespace) -> int:
    from harness.app.shrink.command import shrink

    return shrink(
        arguments.run,
        arguments.cell,
        arguments.run_dir,
        rounds=arguments.rounds,
        check=arguments.check,
        issue=arguments.issue,
    )


# The commands that start no run, and judge none.
_READING: dict[str, Callable[[argparse.Namespace], int]] = {
    "init": _init,
    "plan": _plan,
    "verify": _verify,
    "schema": _schema,
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
