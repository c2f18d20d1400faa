"""Plug-ins: distributions that add to the tables of the harness by entry points. docs/api.md describes each group.

The launcher reads the entry points and writes what ranks need of them into the run directory; agents go by that file,
since the environment of a stack has the plug-in's code, but not its metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from harness.core.errors import InputError, Problem

PREFIX = "packing_harness."  # of the names of groups
# What the launcher loads, and what ranks load.
LAUNCHER_GROUPS = ("projects", "data_paths", "checks", "rules", "notifiers")
NODE_GROUPS = ("projects", "data_paths", "adapters", "trainers", "models")
GROUPS = tuple(dict.fromkeys((*LAUNCHER_GROUPS, *NODE_GROUPS)))


@dataclass(frozen=True, kw_only=True)
class PluginEntry:
    """One entry point: `value` is "module:attribute"."""

    group: str  # without the prefix
    name: str
    value: str

    def load(self, plugin: str) -> Any:
        """Return the object; InputError that names the plug-in when it cannot be imported."""
        try:
            return EntryPoint(self.name, self.value, self.group).load()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise InputError(problem(plugin, self, f"cannot be loaded: {why}")) from error


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A distribution with at least one entry point."""

    name: str
    version: str
    entries: tuple[PluginEntry, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def of_nodes(self) -> tuple[PluginEntry, ...]:
        return tuple(entry for entry in self.entries if entry.group in NODE_GROUPS)

    @property
    def packages(self) -> tuple[str, ...]:
        """Top-level packages of what ranks load."""
        return tuple(dict.fromkeys(entry.value.partition(":")[0].partition(".")[0] for entry in self.of_nodes))


def problem(plugin: str, entry: PluginEntry, message: str) -> Problem:
    """Return what is wrong with an entry point."""
    where = f"{PREFIX}{entry.group}: {entry.name} = {entry.value}"
    hint = f"correct or uninstall {plugin.partition(' ')[0]}; `harness list plugins` lists all"
    return Problem(file=f"plug-in {plugin}", key=where, message=message, hint=hint)


def installed() -> list[Plugin]:
    """Return the plug-ins of this environment, by name. Loads none of them."""
    found: dict[tuple[str, str], dict[PluginEntry, None]] = {}
    points = entry_points()  # once: each call reads the metadata of every distribution
    for group in GROUPS:
        for point in points.select(group=f"{PREFIX}{group}"):
            if point.dist is not None:
                entry = PluginEntry(group=group, name=point.name, value=point.value)
                found.setdefault((point.dist.name, point.dist.version), {})[entry] = None
    return [Plugin(name=name, version=version, entries=tuple(found[name, version])) for name, version in sorted(found)]
