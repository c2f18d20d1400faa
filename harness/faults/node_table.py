"""Imports every module with injections, which register themselves, and makes them by name."""

from __future__ import annotations

from harness.faults import node_content, node_endings, node_metadata, node_numerics
from harness.faults.node_fault import FAULTS, Fault
from harness.features.adapters import node_faults as adapters
from harness.features.attention import node_faults as attention
from harness.features.experts import node_faults as experts
from harness.features.hybrid import node_faults as hybrid
from harness.features.optimizer import node_faults as optimizer
from harness.features.prediction import node_faults as prediction
from harness.features.vision import node_faults as vision
from harness.upstreams.megatron_bridge import node_faults as megatron_bridge
from harness.upstreams.megatron_lm import node_faults as megatron_lm
from harness.upstreams.nemo_rl import node_faults as nemo_rl
from harness.upstreams.verl import node_faults as verl

MODULES = (
    *(node_content, node_endings, node_metadata, node_numerics),
    *(adapters, attention, experts, hybrid, optimizer, prediction, vision),
    *(megatron_bridge, megatron_lm, nemo_rl, verl),
)


def fault_named(name: str | None) -> Fault:
    """Return a new instance of the fault with this name; the clean run for None. KeyError for an unknown name."""
    return Fault() if name is None else FAULTS[name]()
