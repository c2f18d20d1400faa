"""The trainers that are upstream's own, by their name on the axis `trainer`."""

from __future__ import annotations

from typing import Protocol

from harness.core.cell.config import CellConfig
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.megatron_bridge.node_trainer import BridgeTrainer
from harness.upstreams.megatron_lm.node_trainer import MegatronTrainer
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_lookup import Unavailable
from harness.upstreams.skyrl.node_trainer import SkyrlTrainer


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


TRAINERS: dict[str, type[Trainer]] = {"megatron": MegatronTrainer, "bridge": BridgeTrainer, "skyrl": SkyrlTrainer}
