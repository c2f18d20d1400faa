"""What only ranks load, in the environment of the stack under test: the adapter, the trainer and the model."""

from __future__ import annotations

from typing import Any

from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from harness.core.cell.config import CellConfig
from harness.node.data_paths.base import RankContext
from harness.node.data_paths.lookup import Unavailable, not_in_release
from harness.node.data_paths.reference import ReferencePath
from harness.node.probe.model.norm import RMSNorm
from harness.node.probe.model.parts import layer_spec
from harness.node.recording.recorder import Recorder


class ExamplePath(ReferencePath):
    """A real adapter would call upstream's code here."""


class ExampleTrainer:
    """A trainer that no release has."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self.context, self.recorder = context, recorder

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        return not_in_release("no release of megatron-core has the trainer example")

    def run(self) -> None:
        raise NotImplementedError


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
    layers = TransformerBlockSubmodules(layer_specs=[layer_spec(config)] * upstream.num_layers, layer_norm=RMSNorm)
    return HalvedModel(upstream, layers, **arguments)
