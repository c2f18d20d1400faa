"""Injections into verl 0.9.1."""

from __future__ import annotations

from functools import partial

from harness.faults.node_edits import DataPathEdited, Edit
from harness.faults.node_fault import FAULTS

_PACK = "verl.models.mcore.util:preprocess_thd_engine"
_LOSS = "verl.workers.utils.losses:sft_loss"


_EDITS: dict[str, Edit] = {
    "rollout-labels-rolled-after-the-cp-split": Edit(_PACK, "if len(saved_roll_dict) > 0:", "if False:"),
    "rollout-log-probs-of-one-cp-rank": Edit(
        "verl.models.mcore.util:postprocess_thd_engine", "o = output_list[j][0]", "o = output[0]"
    ),
    "rollout-loss-mask-not-shifted": Edit(
        _LOSS, "loss_mask_flatten = torch.roll(loss_mask_flatten, shifts=-1, dims=0)", "pass"
    ),
    "rollout-loss-of-one-replica": Edit(
        _LOSS,
        "loss = -masked_sum(log_prob_flatten, loss_mask_flatten) / batch_num_tokens * dp_size",
        "loss = -masked_sum(log_prob_flatten, loss_mask_flatten) / batch_num_tokens",
    ),
    "rollout-loss-divided-by-a-token-more": Edit(
        _LOSS,
        "loss = -masked_sum(log_prob_flatten, loss_mask_flatten) / batch_num_tokens * dp_size",
        "loss = -masked_sum(log_prob_flatten, loss_mask_flatten) / (batch_num_tokens + 1) * dp_size",
    ),
    "rollout-stages-with-half-of-max-seqlen": Edit(
        _PACK,
        "return input_ids, packed_seq_params, None",
        "packed_seq_params.max_seqlen_q //= 2; packed_seq_params.max_seqlen_kv //= 2; "
        "return input_ids, packed_seq_params, None",
    ),
}
FAULTS.update({name: partial(DataPathEdited, edit) for name, edit in _EDITS.items()})
