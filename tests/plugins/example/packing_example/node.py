"""What only ranks load, in the environment of the stack under test: the adapter, the trainer and the model."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from harness.core.cell.config import CellConfig
from harness.core.run.records import WorkloadSeen
from harness.features.optimizer.node_distributed import build_optimizer, build_schedule
from harness.probe.model import gpt
from harness.probe.model.norm import norm_of
from harness.probe.model.parts import layer_spec
from harness.probe.truth import StepTruth
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.builtin.node_reference import ReferencePath
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable, module_unavailable, not_in_release
from harness.upstreams.node_wrappers import Wrappers
from packing_example import loop


class ExamplePath(ReferencePath):
    """A real adapter would call upstream's code here."""


class FrameworkPath(ReferencePath):
    """The harness packs, and the framework computes the loss: a function as pretrain_gpt.loss_func."""

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        return module_unavailable("example_framework.losses", "example_framework", "loss_func")

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        losses = importlib.import_module("example_framework.losses")  # not above: other paths run without it
        return replace(super().fetch(iterator, chunk), loss=losses.loss_func)


class ExampleTrainer:
    """Runs loop.py, which is not changed, on one rank with the cell's model and data; Wrappers record what it does."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self.context, self.recorder = context, recorder

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        return None if config.layout.world_size == 1 else not_in_release("the loop of packing-example has one rank")

    def run(self) -> None:
        context, config = self.context, self.context.config
        groups = gpt.initialize_parallel(config, context.device)
        self.recorder.progress("training", 0, 0, "setup")  # from here on, exceptions come from the code under test
        chunks = gpt.build_chunks(config, gpt.transformer_config(config), context.device, groups)
        optimizer, path = build_optimizer(config, chunks, groups), ExamplePath(context)
        schedule, wrappers = build_schedule(config, optimizer), Wrappers(context, self.recorder)
        wrappers.built(chunks, optimizer)
        consumed = 0
        for step in range(config.train.steps):
            truth = StepTruth(config, step, context.place.dp)
            inner = path.iterator(truth, 0)
            counts = {name: float(count) for name, count in vars(path.workload).items()}
            self.recorder.record.workloads.append(WorkloadSeen(leg="training", step=step, **counts))
            batches = (path.fetch(inner, 0) for _ in truth.plans)
            sizes = {"num_microbatches": len(truth.plans), "seq_length": config.train.seq_length}
            sizes["micro_batch_size"] = config.micro_batch_size
            loss, norm = wrappers.train_step(loop.train_step, loop.forward_step, batches, chunks[0], optimizer, **sizes)
            told = {"loss_dict": {"lm loss": loss}, "skipped_iter": 0, "loss_scale": 1.0, "grad_norm": norm}
            consumed += len(config.samples(step))
            wrappers.report({**told, "learning_rate": optimizer.param_groups[0]["lr"]}, step, consumed)
            schedule.step(config.train.global_batch)


class HalvedModel(GPTModel):
    """GPTModel with half of its logits."""

    def forward(self, *args: Any, **more: Any) -> Any:
        hook = self.output_layer.register_forward_hook(lambda module, given, made: (made[0] / 2, made[1]))
        try:
            return super().forward(*args, **more)
        finally:
            hook.remove()


def halved(config: CellConfig, upstream: Any, stage: int | None, arguments: dict[str, Any]) -> Any:
    """A chunk of HalvedModel, with the harness's layers."""
    layers = TransformerBlockSubmodules(
        layer_specs=[layer_spec(config)] * upstream.num_layers, layer_norm=norm_of(config)
    )
    return HalvedModel(upstream, layers, **arguments)
