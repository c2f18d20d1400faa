"""Adds what the plug-ins of a run give ranks to the tables of adapters, trainers and models."""

from __future__ import annotations

from typing import Any

from harness.core.plugins import Plugin
from harness.core.run.run_dir import RunDir, text_of
from harness.core.serialization import from_jsonable, loads
from harness.probe.model.builders import MODELS
from harness.upstreams.node_data_paths import ADAPTERS
from harness.upstreams.node_trainers import TRAINERS
from harness.upstreams.table import DATA_PATHS, PROJECTS


def activate(run: RunDir) -> None:
    """Load the plug-ins that the launcher named in the run directory. InputError when one cannot be imported here."""
    tables: dict[str, dict[str, Any]] = {
        "projects": PROJECTS,
        "data_paths": DATA_PATHS,
        "adapters": ADAPTERS,
        "trainers": TRAINERS,
        "models": MODELS,
    }
    for plugin in from_jsonable(tuple[Plugin, ...], loads(text_of(run.plugins))):
        for entry in plugin.of_nodes:
            tables[entry.group][entry.name] = entry.load(str(plugin))
