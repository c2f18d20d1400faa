"""`bridge`: pretrain() and finetune() of megatron.bridge.training, with gpt_step's forward_step as in its scripts.

Each rank makes the cell's ConfigContainer and calls pretrain(), or finetune() when it continues from a checkpoint,
which finetune() requires. node_attach.py observes it from outside, node_files.py writes what it reads.
torch.distributed is initialised already, which upstream allows (`_initialize_distributed`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from typing import Any

from harness.core.cell.axis_values import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.cell.reports import entry_point
from harness.runtime.device import trainer_stubs
from harness.runtime.device.placement import barrier
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.megatron_bridge.node_attach import Attached
from harness.upstreams.megatron_bridge.node_config import container
from harness.upstreams.megatron_bridge.node_files import reserve_pretrained, write_files
from harness.upstreams.megatron_bridge.node_step import missing
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_lookup import Unavailable
from harness.upstreams.node_wrappers import use_own_layers


# Prediction layers without Transformer Engine.
#
# Whatever the layer spec, GPTModelProvider asks megatron.core for prediction layers of Transformer Engine
# (`mtp_block_spec`, 0.6), which need a GPU. Here it gets those that core builds from its local layers.
def use_local_prediction(kind: str) -> None:
    """Put local layers where upstream takes prediction layers from. `kind`: the cell's attention, resolved."""
    import megatron.core.models.gpt.gpt_layer_specs as layer_specs

    if kind not in TE_KINDS:
        layer_specs.get_gpt_mtp_block_spec = partial(_local, layer_specs.get_gpt_mtp_block_spec)


def _local(upstream: Callable[..., Any], config: Any, spec: Any, use_transformer_engine: bool, **more: Any) -> Any:
    return upstream(config, spec, use_transformer_engine=False, **more)


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
        # Other ranks read the files as soon as they begin.
        barrier(self.context.device)
        self.recorder.progress("training", 0, 0, "setup")  # from here on, exceptions come from the code under test
        if self.context.device.kind == "cpu":
            self.recorder.record.cpu_stubs += trainer_stubs.install()
        use_own_layers(config)
        use_local_prediction(config.attention)
        # After the stubs: the wrappers must wrap what upstream will call.
        Attached(self.context, self.recorder)
        home, _, name = entry_point(config).rpartition(".")
        train: Any = getattr(importlib.import_module(home), name)
        step: Any = importlib.import_module("megatron.bridge.training.gpt_step")
        with redirect_stdout(sys.stderr):
            train(container(config, folder, self.context.device), step.forward_step)
