"""The data paths by their name on the axis `packing`, upstream's trainers by theirs on the axis `trainer`.

Their adapters: harness/upstreams/node_data_paths.py and node_trainers.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.upstreams.builtin.spec import REFERENCE, UNPACKED
from harness.upstreams.descriptor import DataPath, Trainer
from harness.upstreams.megatron_bridge.spec import BRIDGE, IN_BATCH, LONG, OFFLINE
from harness.upstreams.megatron_lm.spec import INTER_DOCUMENT, MEGATRON, MEGATRON_RL, SCHEDULER, SFT, SFT_SCHEDULER
from harness.upstreams.nemo_rl.spec import NEMO_RL
from harness.upstreams.skyrl.spec import SKYRL, SKYRL_TRAINER
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


def names(paths: Iterable[DataPath]) -> str:
    """Return the names of data paths as text, e.g. "a, b and c"."""
    *first, last = [path.name for path in paths]
    return f"{', '.join(first)} and {last}" if first else last
