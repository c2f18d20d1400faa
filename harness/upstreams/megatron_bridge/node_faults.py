"""Injections into the functions that Megatron-Bridge's trainer runs: megatron-bridge 0.6.2, megatron-core 0.19.2."""

from __future__ import annotations

from functools import partial

from harness.faults.node_edits import Edit, TrainerEdited
from harness.faults.node_fault import FAULTS

_TRAIN = "megatron.bridge.training.train:"
_STEP = f"{_TRAIN}train_step"
_FLOPS = "megatron.bridge.training.utils.flop_utils:"
_EVALUATE = "megatron.bridge.training.eval:evaluate"
_FINALIZE = "megatron.core.distributed.finalize_model_grads:finalize_model_grads"
_UPDATE = "update_successful, grad_norm, num_zeros_in_grad = optimizer.step()"
_LOAD = "megatron.bridge.training.checkpointing:_load_checkpoint_from_path"
_ON_RANK_1 = "torch.distributed.get_rank() == 1"
_NO_LR = "[group.update(lr=0.0) for group in optimizer.param_groups]"


_EDITS: dict[str, Edit] = {
    "loss-function-times-cp": Edit(
        "megatron.bridge.training.losses:masked_next_token_loss",
        "loss = torch.sum(losses * loss_mask)",
        "loss = torch.sum(losses * loss_mask) * __import__('megatron.core').core.mpu.get_context_parallel_world_size()",
    ),
    "loss-function-without-its-mask": Edit(
        "megatron.bridge.training.losses:masked_next_token_loss",
        "loss = torch.sum(losses * loss_mask)",
        "loss = torch.sum(losses)",
    ),
    "token-count-of-one-replica": Edit(
        _FINALIZE, "torch.distributed.all_reduce(num_tokens, group=dp_cp_group)", "num_tokens.mul_(2)"
    ),
    "norm-gradients-not-summed-over-tp": Edit(
        _FINALIZE, "_allreduce_non_tensor_model_parallel_grads(model, config, tp_group)", "pass"
    ),
    "tied-embedding-gradients-not-summed": Edit(
        _FINALIZE, "_allreduce_word_embedding_grads(model, config, embd_group, pp_group)", "pass"
    ),
    "micro-batch-left-out": Edit(
        _STEP,
        "model=model,\n            num_microbatches=get_num_microbatches(),\n            seq_length=seq_length,",
        "model=model,\n            num_microbatches=get_num_microbatches() - 1,\n            seq_length=seq_length,",
    ),
    "clipped-by-the-norm-of-one-rank": Edit(
        "megatron.core.optimizer.clip_grads:get_grad_norm_fp32",
        "total_norm, op=torch.distributed.ReduceOp.SUM, group=grad_stats_parallel_group",
        "total_norm.clone(), op=torch.distributed.ReduceOp.SUM, group=grad_stats_parallel_group",
    ),
    "first-update-skipped-on-one-rank": Edit(
        _STEP, _UPDATE, f"{_ON_RANK_1} and global_state.train_state.step == 0 and {_NO_LR}; {_UPDATE}"
    ),
    "second-update-skipped-on-one-rank": Edit(
        _STEP, _UPDATE, f"{_ON_RANK_1} and global_state.train_state.step == 1 and {_NO_LR}; {_UPDATE}"
    ),
    "weights-not-gathered-after-an-update": Edit(
        "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.start_param_sync_for_bucket_group_subset",
        "for model_chunk in self.model_chunks:",
        "for model_chunk in []:",
    ),
    "learning-rate-halved": Edit(
        "megatron.core.optimizer_param_scheduler:OptimizerParamScheduler.get_lr", "return max_lr", "return max_lr / 2"
    ),
    "reported-loss-of-one-replica": Edit(_STEP, "torch.distributed.all_reduce(val, group=dp_cp_group)", "pass"),
    "reported-norm-times-tp": Edit(
        _STEP,
        "# Update learning rate.",
        "grad_norm = grad_norm * pg_collection.tp.size()",
    ),
    "samples-counted-twice": Edit(
        f"{_TRAIN}train",
        "global_state.train_state.consumed_train_samples += batch_size",
        "global_state.train_state.consumed_train_samples += 2 * batch_size",
    ),
    "updates-counted-from-zero": Edit(_LOAD, 'optimizer.load_state_dict(state_dict["optimizer"])', "pass"),
    "updates-counted-from-zero-in-another-layout": Edit(
        _LOAD, 'optimizer.load_state_dict(state_dict["optimizer"])', "pass"
    ),
    "schedule-not-loaded": Edit(
        _LOAD, 'opt_param_scheduler.load_state_dict(state_dict["opt_param_scheduler"])', "pass"
    ),
    "random-state-not-loaded": Edit(
        _LOAD, 'random.setstate(rng_state["random_rng_state"])', "random.seed(cfg.rng.seed + 1)"
    ),
    "samples-not-loaded": Edit(
        _LOAD,
        "state.train_state = read_train_state(train_state_filename)",
        "state.train_state = read_train_state(train_state_filename); state.train_state.consumed_train_samples = 0",
    ),
    "evaluated-samples-not-loaded": Edit(
        _LOAD,
        "state.train_state = read_train_state(train_state_filename)",
        "state.train_state = read_train_state(train_state_filename); state.train_state.consumed_valid_samples = 0",
    ),
    "packs-counted-as-one-document": Edit(
        f"{_FLOPS}accumulate_flops_metadata",
        "_scalar_sum_for_accumulator(sub_seq_lens.long() ** 2)",
        "mbs * tensor_seq_len**2",
    ),
    "tokens-counted-on-one-replica": Edit(
        f"{_FLOPS}resolve_global_flops_runtime_stats",
        "torch.distributed.all_reduce(stats, op=torch.distributed.ReduceOp.SUM, group=dp_group)",
        "pass",
    ),
    "printed-loss-with-that-of-the-step-before": Edit(
        "megatron.bridge.training.utils.train_utils:training_log",
        'total_loss_dict[key] = torch.tensor([0.0], dtype=torch.float, device="cuda")\n',
        "pass\n",
    ),
    "replica-reads-the-rows-of-another": Edit(
        "megatron.bridge.data.samplers:MegatronPretrainingBatchSampler.__iter__",
        "self.data_parallel_rank,\n                    self._global_batch_size,",
        "0,\n                    self._global_batch_size,",
    ),
    "loss-mask-of-tokens-not-of-labels": Edit(
        "megatron.bridge.data.datasets.gpt_sft:GPTSFTDataset.collate_fn",
        "self._build_loss_mask(item)[1:]",
        "self._build_loss_mask(item)[:-1]",
    ),
    "later-stages-without-metadata": Edit(
        "megatron.bridge.training.gpt_step:_forward_step_common",
        'forward_args["packed_seq_params"] = get_packed_seq_params(packed_seq_metadata)',
        'forward_args["packed_seq_params"] = get_packed_seq_params(packed_seq_metadata) if '
        "is_pp_first_stage(pg_collection.pp) else None",
    ),
    "evaluation-leaves-its-mode": Edit(_EVALUATE, "model_module.train()", "pass"),
    "evaluation-in-training-mode": Edit(_EVALUATE, "model_module.eval()", "pass"),
    "evaluation-loss-of-one-replica": Edit(_EVALUATE, "torch.distributed.all_reduce(val, group=dp_cp_group)", "pass"),
}
FAULTS.update({name: partial(TrainerEdited, edit) for name, edit in _EDITS.items()})
