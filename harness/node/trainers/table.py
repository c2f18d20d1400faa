"""The trainers that are upstream's own, by their name on the axis `trainer`."""

from __future__ import annotations

from harness.node.trainers.base import Trainer
from harness.node.trainers.bridge.trainer import BridgeTrainer
from harness.node.trainers.megatron.trainer import MegatronTrainer
from harness.node.trainers.skyrl.trainer import SkyrlTrainer

TRAINERS: dict[str, type[Trainer]] = {"megatron": MegatronTrainer, "bridge": BridgeTrainer, "skyrl": SkyrlTrainer}
