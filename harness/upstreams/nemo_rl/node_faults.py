"""Injections into a checkout of NeMo-RL."""

from __future__ import annotations

from functools import partial

from harness.faults.node_edits import DataPathEdited, Edit
from harness.faults.node_fault import FAULTS

_EDITS: dict[str, Edit] = {
    "rollout-offsets-without-padding": Edit(
        "nemo_rl.models.megatron.data:_pack_sequences_for_megatron",
        "cu_seqlens_q_padded=cu_seqlens_padded,",
        "cu_seqlens_q_padded=cu_seqlens,",
    ),
    "rollout-loss-divided-by-cp-once-more": Edit(
        "nemo_rl.models.megatron.train:LossPostProcessor.__call__",
        "return loss * num_microbatches / cp_size, metrics",
        "return loss * num_microbatches / cp_size**2, metrics",
    ),
}
FAULTS.update({name: partial(DataPathEdited, edit) for name, edit in _EDITS.items()})
