"""`harness list`: the runs under a folder, finished or not, newest last; recipes of stacks; projects; plug-ins."""

from __future__ import annotations

import json
from pathlib import Path

from harness.campaign import plugins
from harness.core.outcomes import EXIT_PASS
from harness.core.plugins import installed
from harness.infra import screen


def list_runs(run_parent: Path, *, limit: int, as_json: bool) -> int:
    """Print id, state and cells of each run."""
    from harness.runs.listing import listing

    runs = listing(run_parent)[-limit:]
    if as_json:
        screen.json_data(json.dumps([run.jsonable() for run in runs], indent=2) + "\n")
        return EXIT_PASS
    width = max((len(run.run_id) for run in runs), default=0)
    for run in runs:
        screen.out(screen.beside(f"{run.run_id:<{width}}  {run.state:<11}  ", run.text))
    if not runs:
        screen.out(f"no runs under {run_parent}")
    return EXIT_PASS


def list_stacks() -> int:
    """Print the name of each recipe and what software it is."""
    from harness.matrix.stacks.recipes import RECIPES

    width = max(map(len, RECIPES))
    for name, recipe in RECIPES.items():
        screen.out(screen.beside(f"{name:<{width}}  ", recipe.doc))
    return EXIT_PASS


def list_projects() -> int:
    """Print each project that stacks can check out: how it is recognised, its data path and its gate."""
    from harness.upstreams.table import PROJECTS

    plugins.active()
    width = max(map(len, PROJECTS))
    for name, project in PROJECTS.items():
        gate = f"; gate {Path(project.gate).stem}" if project.gate else "; no gate"
        text = f"{project.title}: a tree with {project.signs[0]}; packing {project.data_path}{gate}"
        screen.out(screen.beside(f"{name:<{width}}  ", text))
    return EXIT_PASS


def list_plugins() -> int:
    """Print each plug-in with its entry points, then load them: InputError for those that are broken."""
    found = installed()
    for plugin in found:
        screen.out(str(plugin))
        for entry in plugin.entries:
            screen.out(f"  {entry.group:<10}  {entry.name}  {entry.value}")
    if not found:
        screen.out("no plug-ins are installed")
    plugins.active()
    return EXIT_PASS
