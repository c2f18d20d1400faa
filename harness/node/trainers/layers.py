"""The cell's attention and the probe's norm in Megatron's local layers, whose own ones refuse packed rows, context
parallelism and sequence parallelism. Layers of Transformer Engine are left as they are.
"""

from __future__ import annotations

from harness.core.cell.axis_values import TE_KINDS
from harness.node.probe.model.attention_kinds import core_attention
from harness.node.probe.model.norm import RMSNorm
from harness.node.probe.model.parts import put


def use_own_layers(kind: str) -> None:
    """Put them where upstream's specs of local layers take theirs from. `kind`: the cell's attention, resolved."""
    import megatron.core.models.backends as backends
    import megatron.core.models.gpt.gpt_layer_specs as layer_specs
    import megatron.core.transformer.transformer_block as transformer_block

    if kind in TE_KINDS:
        return
    attention, local = core_attention(kind), backends.LocalSpecProvider
    put(local, core_attention=lambda self: attention, layer_norm=lambda self, *args, **kwargs: RMSNorm)
    put(layer_specs, LNImpl=RMSNorm)
    put(transformer_block, LayerNormImpl=RMSNorm)
