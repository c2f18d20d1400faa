"""Loads the plug-ins of this environment into the tables of the launcher, once per process, before a command runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from harness.core.errors import InputError, Problem
from harness.core.plugins import LAUNCHER_GROUPS, PREFIX, Plugin, PluginEntry, installed, problem

if TYPE_CHECKING:
    from harness.core.run.run_plan import RunPlan

Add = Callable[[str, Any], str]  # adds an object under a name; returns why it cannot, or ""


@cache
def active() -> tuple[Plugin, ...]:
    """The plug-ins, loaded. InputError, which names the distribution, for one that is broken or takes a used name."""
    found = tuple(installed())
    if found:  # the tables are loaded only then
        adders = _adders()
        problems = [wrong for plugin in found for entry in plugin.entries if (wrong := _added(plugin, entry, adders))]
        problems += _without_adapter(found)
        if problems:
            active.cache_clear()
            raise InputError(problems)
    return found


def _added(plugin: Plugin, entry: PluginEntry, adders: Mapping[str, Add]) -> Problem | None:
    try:
        made = entry.load(str(plugin)) if entry.group in LAUNCHER_GROUPS else None
    except InputError as error:
        return error.problems[0]
    wrong = adders[entry.group](entry.name, made)
    return problem(str(plugin), entry, wrong) if wrong else None


def _without_adapter(plugins: tuple[Plugin, ...]) -> list[Problem]:
    """A data path needs an adapter, and an adapter a data path."""
    entries = [(plugin, entry) for plugin in plugins for entry in plugin.entries]
    paths, adapters = (
        {entry.name for _, entry in entries if entry.group == group} for group in ("data_paths", "adapters")
    )
    message = f"needs an entry point of this name in {PREFIX}data_paths, and one in {PREFIX}adapters"
    alone = paths ^ adapters
    return [
        problem(str(plugin), entry, message)
        for plugin, entry in entries
        if entry.group in ("data_paths", "adapters") and entry.name in alone
    ]


def _adders() -> dict[str, Add]:
    """How an entry of each group is added. The only place that changes the tables of the launcher."""
    from harness.core.cell.axis_values import BUILDERS, TRAINERS
    from harness.judge.checks import table as checks
    from harness.judge.checks.table import Check
    from harness.matrix.rules import table as rules
    from harness.matrix.rules.rule import Rule
    from harness.reporting.notify import NOTIFIERS
    from harness.upstreams.table import DATA_PATHS

    adapters = [*DATA_PATHS]

    def check(name: str, made: Any) -> str:
        known = [one.name for one in (*checks.CHECKS, *checks.ADDED)]
        return _not_a(Check, made) or _misnamed(name, made.name) or _add(name, known, checks.ADDED, made)

    def rule(name: str, made: Any) -> str:
        known = [one.id for one in (*rules.RULES, *rules.ADDED)]
        return _not_a(Rule, made) or _misnamed(name, made.id) or _add(name, known, rules.ADDED, made)

    def notifier(name: str, made: Any) -> str:
        if not callable(made):
            return f"must be a function, not {type(made).__name__}"
        wrong = _taken(name, NOTIFIERS)
        NOTIFIERS.setdefault(name, made)
        return wrong

    return {
        "data_paths": _add_data_path,
        "adapters": lambda name, _: _add(name, adapters, adapters, name),
        "trainers": lambda name, _: _add(name, TRAINERS, TRAINERS, name),
        "models": lambda name, _: _add(name, BUILDERS, BUILDERS, name),
        "checks": check,
        "rules": rule,
        "notifiers": notifier,
    }


def _add_data_path(name: str, path: Any) -> str:
    from harness.matrix.rules.packing import limit_of
    from harness.matrix.rules.table import ADDED
    from harness.upstreams.descriptor import DataPath
    from harness.upstreams.table import DATA_PATHS

    if wrong := _not_a(DataPath, path) or _misnamed(name, path.name) or _taken(name, DATA_PATHS):
        return wrong
    DATA_PATHS[name] = path
    ADDED.extend(limit_of(path, limit) for limit in path.limits)
    return ""


def _add(name: str, known: Collection[str], table: list[Any], item: Any) -> str:
    if wrong := _taken(name, known):
        return wrong
    table.append(item)
    return ""


def _not_a(kind: type[Any], found: Any) -> str:
    return "" if isinstance(found, kind) else f"must be a {kind.__name__}, not {type(found).__name__}"


def _misnamed(name: str, own: str) -> str:
    return "" if name == own else f"the entry point is named {name!r}, and what it loads {own!r}"


def _taken(name: str, known: Collection[str]) -> str:
    return f"the name {name!r} is taken, by the harness or another plug-in" if name in known else ""


def versions() -> dict[str, str]:
    """Name -> version of each plug-in, for the provenance of a run."""
    return {plugin.name: plugin.version for plugin in active()}


def require(plan: RunPlan) -> None:
    """InputError when a plug-in with which a run was planned is not installed here."""
    here = versions()
    missing = [f"{name} {version}" for name, version in plan.provenance.plugins.items() if name not in here]
    if missing:
        message = f"the run used plug-ins that are not installed here: {', '.join(missing)}"
        raise InputError(Problem(message=message, hint="install them beside the harness"))
