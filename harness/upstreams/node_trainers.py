"""The adapters of upstream's own trainers, by their name on the axis `trainer`; plug-ins add theirs."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Protocol

from harness.core.cell.config import CellConfig
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_lookup import Unavailable
from harness.upstreams.table import UPSTREAM_TRAINERS


class Trainer(Protocol):
    """Serves one rank. torch.distributed is initialised before `run`, Megatron's process groups are not."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None: ...

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        """Return why this stack cannot run the trainer; None when it can. Imports what it needs."""
        ...

    def run(self) -> None:
        """Train as the cell's configuration says. Collective."""
        ...


TRAINERS: dict[str, type[Trainer]] = {
    trainer.name: resolve_name(trainer.adapter) for trainer in UPSTREAM_TRAINERS.values()
}
