"""Data paths by their name on the axis `packing`, upstream's trainers by theirs on the axis `trainer`, and projects by
theirs as `package` of a checkout.

Plug-ins add data paths and projects. A data path and a trainer name their adapters, which ranks import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.upstreams.builtin.spec import REFERENCE, UNPACKED
from harness.upstreams.descriptor import DataPath, Trainer
from harness.upstreams.megatron_bridge.project import MEGATRON_BRIDGE
from harness.upstreams.megatron_bridge.spec import BRIDGE, IN_BATCH, LONG, OFFLINE
from harness.upstreams.megatron_lm.project import MEGATRON_LM
from harness.upstreams.megatron_lm.spec import INTER_DOCUMENT, MEGATRON, MEGATRON_RL, SCHEDULER, SFT, SFT_SCHEDULER
from harness.upstreams.nemo_rl.project import NEMO_RL as NEMO_RL_PROJECT
from harness.upstreams.nemo_rl.spec import NEMO_RL
from harness.upstreams.project import Project
from harness.upstreams.skyrl.project import SKYRL as SKYRL_PROJECT
from harness.upstreams.skyrl.project import SKYRL_TRAIN
from harness.upstreams.skyrl.spec import SKYRL, SKYRL_TRAINER
from harness.upstreams.verl.project import VERL as VERL_PROJECT
from harness.upstreams.verl.spec import VERL

DATA_PATHS: dict[str, DataPath] = {
    path.name: path
    for path in (
        *(UNPACKED, REFERENCE, SFT, INTER_DOCUMENT, SCHEDULER, SFT_SCHEDULER, SKYRL),
        *(MEGATRON_RL, NEMO_RL, VERL),
        *(OFFLINE, IN_BATCH, LONG),
    )
}
UPSTREAM_TRAINERS: dict[str, Trainer] = {trainer.name: trainer for trainer in (MEGATRON, BRIDGE, SKYRL_TRAINER)}
PROJECTS: dict[str, Project] = {
    project.name: project
    for project in (MEGATRON_LM, MEGATRON_BRIDGE, SKYRL_PROJECT, NEMO_RL_PROJECT, SKYRL_TRAIN, VERL_PROJECT)
}


def project_of(has: Callable[[str], bool], names: Iterable[str] = ()) -> Project | None:
    """Return the project whose modules a tree holds, None if unknown.

    `has`: whether the tree has a file or folder. `names`: of its repository; among several projects whose modules the
    tree holds, one that has such a name is preferred, and of others the first in the table.
    """
    there = [project for project in PROJECTS.values() if any(map(has, project.signs))]
    known = {name.lower() for name in names}
    named = [project for project in there if known & {name.lower() for name in project.repositories}]
    return next(iter(named or there), None)


def names(paths: Iterable[DataPath]) -> str:
    """Return the names of data paths as text, e.g. "a, b and c"."""
    *first, last = [path.name for path in paths]
    return f"{', '.join(first)} and {last}" if first else last
