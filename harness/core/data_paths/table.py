"""The data paths by their name on the axis `packing`. Their adapters: harness/node/data_paths/table.py."""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.data_paths.descriptor import DataPath
from harness.core.data_paths.megatron_bridge import IN_BATCH, LONG, OFFLINE
from harness.core.data_paths.megatron_lm import INTER_DOCUMENT, MEGATRON_RL, SCHEDULER, SFT, SFT_SCHEDULER
from harness.core.data_paths.nemo_rl import NEMO_RL
from harness.core.data_paths.own import REFERENCE, UNPACKED
from harness.core.data_paths.skyrl import SKYRL
from harness.core.data_paths.verl import VERL

DATA_PATHS: dict[str, DataPath] = {
    path.name: path
    for path in (
        *(UNPACKED, REFERENCE, SFT, INTER_DOCUMENT, SCHEDULER, SFT_SCHEDULER, SKYRL),
        *(MEGATRON_RL, NEMO_RL, VERL),
        *(OFFLINE, IN_BATCH, LONG),
    )
}


def names(paths: Iterable[DataPath]) -> str:
    """The names of data paths as text, e.g. "a, b and c"."""
    *first, last = [path.name for path in paths]
    return f"{', '.join(first)} and {last}" if first else last
