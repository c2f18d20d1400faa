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
    """Return the plug-ins, loaded.

    InputError, which names the distribution, for one that is broken or takes a used name.
    """
    plugins = tuple(installed())
    if plugins:  # the tables are loaded only then
        adders = _adders()
        problems = [wrong for plugin in plugins for entry in plugin.entries if (wrong := _added(plugin, entry, adders))]
        problems += _without_adapter(plugins)
        problems = problems or _of_projects(plugins)
        if problems:
            active.cache_clear()
            raise InputError(problems)
    return plugins


def _added(plugin: Plugin, entry: PluginEntry, adders: Mapping[str, Add]) -> Problem | None:
    try:
        loaded = entry.load(str(plugin)) if entry.group in LAUNCHER_GROUPS else None
    except InputError as error:
        return error.problems[0]
    wrong = adders[entry.group](entry.name, loaded)
    return problem(str(plugin), entry, wrong) if wrong else None


def _without_adapter(plugins: tuple[Plugin, ...]) -> list[Problem]:
    """Return a problem for each data path without an adapter, and for each adapter without a data path."""
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


def _of_projects(plugins: tuple[Plugin, ...]) -> list[Problem]:
    """Return a problem for each project that names a data path, a project or a gate that is not there.

    Only once all plug-ins are loaded: a project may name what another entry point, or plug-in, brings.
    """
    from harness.infra.files import matrix_path
    from harness.upstreams.table import DATA_PATHS, PROJECTS

    found = []
    entries = [(plugin, entry) for plugin in plugins for entry in plugin.entries if entry.group == "projects"]
    for plugin, entry in entries:
        project = PROJECTS[entry.name]
        absent = [f"the data path {project.data_path!r}"] if project.data_path not in DATA_PATHS else []
        absent += [f"the project {pin.project!r}" for pin in project.pins if pin.project not in PROJECTS]
        absent += [f"the gate {project.gate}"] if project.gate and not matrix_path(project.gate).is_file() else []
        found += [problem(str(plugin), entry, f"names {what}, which is not there") for what in absent]
    return found


def _adders() -> dict[str, Add]:
    """Return how an entry of each group is added. The only place that changes the tables of the launcher."""
    from harness.core.cell.axis_values import BUILDERS, TRAINERS
    from harness.judge.checks import table as checks
    from harness.judge.checks.table import Check
    from harness.matrix.rules import table as rules
    from harness.matrix.rules.rule import Rule
    from harness.reporting.notify import NOTIFIERS
    from harness.upstreams.table import DATA_PATHS

    adapters = [*DATA_PATHS]

    def check(name: str, loaded: Any) -> str:
        taken = [entry.name for entry in (*checks.CHECKS, *checks.ADDED)]
        return _not_a(Check, loaded) or _misnamed(name, loaded.name) or _add(name, taken, checks.ADDED, loaded)

    def rule(name: str, loaded: Any) -> str:
        taken = [entry.id for entry in (*rules.RULES, *rules.ADDED)]
        return _not_a(Rule, loaded) or _misnamed(name, loaded.id) or _add(name, taken, rules.ADDED, loaded)

    def notifier(name: str, loaded: Any) -> str:
        if not callable(loaded):
            return f"must be a function, not {type(loaded).__name__}"
        wrong = _taken(name, NOTIFIERS)
        NOTIFIERS.setdefault(name, loaded)
        return wrong

    return {
        "projects": _add_project,
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


def _add_project(name: str, project: Any) -> str:
    from harness.upstreams.project import Project
    from harness.upstreams.table import PROJECTS

    if wrong := _not_a(Project, project) or _misnamed(name, project.name) or _taken(name, PROJECTS):
        return wrong
    PROJECTS[name] = project
    return ""


def _add(name: str, taken: Collection[str], table: list[Any], loaded: Any) -> str:
    if wrong := _taken(name, taken):
        return wrong
    table.append(loaded)
    return ""


def _not_a(kind: type[Any], loaded: Any) -> str:
    return "" if isinstance(loaded, kind) else f"must be a {kind.__name__}, not {type(loaded).__name__}"


def _misnamed(name: str, loaded_name: str) -> str:
    return "" if name == loaded_name else f"the entry point is named {name!r}, and what it loads {loaded_name!r}"


def _taken(name: str, taken: Collection[str]) -> str:
    return f"the name {name!r} is taken, by the harness or another plug-in" if name in taken else ""


def versions() -> dict[str, str]:
    """Return the version of each plug-in by its name, for the provenance of a run."""
    return {plugin.name: plugin.version for plugin in active()}


def require(plan: RunPlan) -> None:
    """Raise InputError when a plug-in with which a run was planned is not installed here."""
    here = versions()
    missing = [f"{name} {version}" for name, version in plan.provenance.plugins.items() if name not in here]
    if missing:
        message = f"the run used plug-ins that are not installed here: {', '.join(missing)}"
        raise InputError(Problem(message=message, hint="install them beside the harness"))
