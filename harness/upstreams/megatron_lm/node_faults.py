"""Injections into a checkout of Megatron-LM: its packing scheduler and its packing of rollouts."""

from __future__ import annotations

from functools import partial

from harness.faults.node_edits import DataPathEdited, Edit
from harness.faults.node_fault import FAULTS

_OF_ROLLOUTS: dict[str, Edit] = {
    "rollout-prompts-in-the-loss": Edit(
        "megatron.rl.sequence_packing_utils:SequencePacker.pack_sequences",
        "loss_mask[bin_idx, start:end] *= gen_mask.float()",
        "pass",
    ),
    "rollout-positions-run-on": Edit(
        "megatron.rl.sequence_packing_utils:SequencePacker.pack_sequences",
        "position_ids[bin_idx, start:end] = torch.arange(",
        "position_ids[bin_idx, start:end] = start + torch.arange(",
    ),
}


_SCHEDULED = "megatron.core.datasets.data_schedule:get_batch_on_this_rank_for_sequence_packing"


_OF_SCHEDULER: dict[str, Edit] = {
    "scheduler-squares-of-the-sum": Edit(
        "megatron.core.datasets.data_schedule:DpBalancedScheduler.run",
        "sum(seqlen**2 for seqlen in seqlens_gathered)",
        "sum(seqlens_gathered) ** 2",
    ),
    "scheduler-offsets-without-padding": Edit(
        _SCHEDULED, "cu_seqlens_q=cu_seqlens_padded,", "cu_seqlens_q=cu_seqlens,"
    ),
    "scheduler-max-seqlen-on-tp-rank-0": Edit(
        _SCHEDULED,
        "broadcast_tensor(batch['max_seqlen'], tp_src_rank, tp_group)",
        "is_tp_rank_0 or batch['max_seqlen'].fill_(1)",  # what is uninitialised may be right by chance
    ),
}
FAULTS.update({name: partial(DataPathEdited, edit) for name, edit in (_OF_ROLLOUTS | _OF_SCHEDULER).items()})
