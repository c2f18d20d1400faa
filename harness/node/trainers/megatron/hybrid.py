"""A hybrid model for upstream's pretrain_hybrid.py: its flags, and layers that a CPU can run.

Upstream's own layer specs need Transformer Engine; like its local layers (layers.py) they are replaced where its script
takes them from, by those of the harness's own loop.
"""

from __future__ import annotations

import importlib
from typing import Any

from harness.core.cell.axis_values import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.cell.upstream_config import recurrent_fields
from harness.node.probe.model.gpt import hybrid_spec
from harness.node.probe.model.hybrid import pattern_of, use_own_norm

_MODULE, _NAME = "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"
SPEC = ["--spec", _MODULE, _NAME]


def hybrid_values(config: CellConfig) -> dict[str, Any]:
    """Values of flags: the pattern, from which upstream takes virtual stages, and the sizes of recurrent layers."""
    sizes = {name.replace("_", "-"): value for name, value in recurrent_fields(config.model).items()}
    return {"hybrid-layer-pattern": pattern_of(config), **sizes}


def use_own_hybrid_layers(config: CellConfig) -> None:
    """Put the cell's layers where the script's --spec finds them."""
    if config.model.hybrid and config.attention not in TE_KINDS:
        use_own_norm()
        setattr(importlib.import_module(_MODULE), _NAME, hybrid_spec(config))
