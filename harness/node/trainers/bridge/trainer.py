"""`bridge`: pretrain() and finetune() of megatron.bridge.training, with gpt_step's forward_step as in its scripts.

Each rank makes the cell's ConfigContainer and calls pretrain(), or finetune() when it continues from a checkpoint,
which finetune() requires. attach.py observes it from outside, files.py writes what it reads. torch.distributed is
initialised already, which upstream allows (`_initialize_distributed`).
"""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import redirect_stdout
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.cell.reports import entry_point
from harness.node.data_paths.base import RankContext
from harness.node.data_paths.bridge.step import missing
from harness.node.data_paths.lookup import Unavailable
from harness.node.device import trainer_stubs
from harness.node.device.placement import barrier
from harness.node.recording.recorder import Recorder
from harness.node.trainers.bridge.attach import Attached
from harness.node.trainers.bridge.config import container
from harness.node.trainers.bridge.files import reserve_pretrained, write_files
from harness.node.trainers.bridge.layers import use_local_prediction
from harness.node.trainers.layers import use_own_layers


class BridgeTrainer:
    """Serves one rank."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self.context, self.recorder = context, recorder

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when the packages are imported
        return missing("data.builders.gpt_sft", "data.packing.parquet", "training.finetune", "training.gpt_step")

    def run(self) -> None:
        config, folder = self.context.config, self.context.folder / "data"
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"  # required by ConfigContainer.validate with tp or cp
        if self.context.is_rank_zero:
            write_files(folder, config)
            if config.model.peft:
                reserve_pretrained(folder)
        barrier(self.context.device)
        self.recorder.progress("training", 0, 0, "setup")  # from here on, exceptions come from the code under test
        if self.context.device.kind == "cpu":
            self.recorder.record.cpu_stubs += trainer_stubs.install()
        use_own_layers(config.attention)
        use_local_prediction(config.attention)
        Attached(self.context, self.recorder)
        home, _, name = entry_point(config).rpartition(".")
        train: Any = getattr(importlib.import_module(home), name)
        step: Any = importlib.import_module("megatron.bridge.training.gpt_step")
        with redirect_stdout(sys.stderr):
            train(container(config, folder, self.context.device), step.forward_step)
