"""What a rank records of a model with adapters: that all other weights stay, and the weights that upstream merges."""

from __future__ import annotations

from typing import Any

from harness.core.run.tensor_records import Fingerprint, FrozenSeen, MergedSeen
from harness.node.probe.hooks.fingerprints import gradient_fingerprint
from harness.node.probe.model.bridge.adapters import adapted_layers, merged_weight, output_off
from harness.node.probe.model.distributed_optimizer import gather_weights
from harness.node.probe.model.gpt import unwrap
from harness.node.probe.observer import Observer
from harness.node.probe.stored_state import digest
from harness.node.probe.weights import NamedParameter, is_expert


class AdapterRecord:
    """Create it before the first step. Both methods are collective over tp, and do nothing without adapters."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        config, record = observer.context.config, observer.recorder.record
        self.peft, self.seed = config.model.peft, config.train.seed
        if not self.peft:
            return
        record.frozen = [self._frozen(item) for item in self._frozen_parameters()]
        record.merged = [self._merged(layer, item) for layer, item in self._adapted()] if self.peft.merges else []

    def last(self) -> None:
        """After the last step."""
        record = self.observer.recorder.record
        if not self.peft:
            return
        gather_weights(self.observer.chunks)
        for seen, item in zip(record.frozen, self._frozen_parameters()):
            seen.after, seen.gradient = digest(item.parameter), _has_gradient(item.parameter)
        for merged, (layer, item) in zip(record.merged, self._adapted()):
            merged.after = self._fingerprint(layer, item)

    def _frozen_parameters(self) -> list[NamedParameter]:
        return [item for item in self.observer.all_parameters() if not item.parameter.requires_grad]

    def _adapted(self) -> list[tuple[Any, NamedParameter]]:
        """Each adapted layer with its own weight."""
        named = {item.parameter: item for item in self.observer.all_parameters()}
        layers = [layer for chunk in self.observer.chunks for layer in adapted_layers(unwrap(chunk))]
        return [(layer, named[layer.to_wrap.weight]) for layer in layers]

    def _frozen(self, item: NamedParameter) -> FrozenSeen:
        return FrozenSeen(
            name=item.name,
            sharded=item.shard.dim is not None,
            before=digest(item.parameter),
            shard=item.expert_shard,
        )

    def _merged(self, layer: Any, item: NamedParameter) -> MergedSeen:
        return MergedSeen(
            name=item.name,
            sharded=item.shard.dim is not None,
            before=self._fingerprint(layer, item),
            output_off=None if is_expert(item.name) else output_off(layer, self.seed),
            shard=item.expert_shard,
        )

    def _fingerprint(self, layer: Any, item: NamedParameter) -> Fingerprint:
        return gradient_fingerprint(item, merged_weight(layer), self.seed)


def _has_gradient(parameter: Any) -> bool:
    return any(getattr(parameter, name, None) is not None for name in ("grad", "main_grad"))
