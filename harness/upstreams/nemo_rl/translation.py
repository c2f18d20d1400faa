"""From a configuration of NeMo-RL, with the overrides of a command, to keys of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core.packing.options import ALGORITHMS
from harness.matrix.intake.configuration import flat
from harness.matrix.intake.fields import (
    DATA,
    NO_KEY,
    ROLLOUT,
    RUN,
    SPEED,
    UNTRAINED,
    finish,
    layout,
    named_model,
    of_megatron,
    schedule,
)
from harness.matrix.intake.run import Settings, TrainingRun, Translation

SCRIPTS = (
    *("run_sft.py", "run_grpo.py", "run_dpo.py", "run_ppo.py", "run_rm.py", "run_distillation.py", "run_vlm_sft.py"),
    *("run_vlm_grpo.py", "run_grpo_single_controller.py"),
)
_MEGATRON = "policy.megatron_cfg."
_NO_GRADIENTS = "it is of the passes without gradients, which have the rows of training here"
_REASONS: Mapping[str, str] = {
    "policy.generation.": ROLLOUT,
    "policy.tokenizer.": DATA,
    "policy.dtensor_cfg.": "it is of NeMo-RL's other backend",
    "policy.optimizer": "it is of NeMo-RL's other backend",
    "policy.scheduler": "it is of NeMo-RL's other backend",
    "policy.dynamic_batching.": "it changes how many documents a micro-batch has",
    "policy.sequence_packing.logprob_mb_tokens": _NO_GRADIENTS,
    "policy.sequence_packing.": NO_KEY,
    "policy.sequence_packing.sequence_length_round": "NeMo-RL reads it with dynamic batching alone",
    "policy.": "it is not part of a training step",
    "policy.logprob_batch_size": _NO_GRADIENTS,
    "policy.generation_batch_size": ROLLOUT,
    "policy.hf_config_overrides.": "the harness takes the sizes of the public model",
    **dict.fromkeys(
        ("policy.logprob_chunk_size", "policy.router_replay.", "policy.quant_", "policy.draft."),
        NO_KEY,
    ),
    _MEGATRON + "peft.": "adapters are keys of Megatron-Bridge's cells: `model.peft`",
    _MEGATRON + "fp8_cfg.": "cells run in bf16: no cell in fp8 or fp4 runs yet",
    _MEGATRON + "env_vars.": "it configures the machine",
    _MEGATRON + "checkpoint.": RUN,
    _MEGATRON: SPEED,
    **dict.fromkeys(
        ("grpo.", "loss_fn.", "env.", "dpo.", "ppo.", "rm.", "distillation.", "value.", "teacher."), UNTRAINED
    ),
    "data.": DATA,
    **dict.fromkeys(("sft.", "checkpointing.", "logger.", "cluster."), RUN),
}


_SWITCHED = (f"{_MEGATRON}peft.", f"{_MEGATRON}fp8_cfg.", "policy.draft.")  # sections that say nothing unless enabled
_CONFIGURATIONS = {
    "run_sft.py": "sft.yaml",
    "run_grpo.py": "grpo_math_1B.yaml",
    "run_dpo.py": "dpo.yaml",
    "run_ppo.py": "ppo_math_1B.yaml",
    "run_rm.py": "rm.yaml",
    "run_distillation.py": "distillation_math.yaml",
    "run_vlm_sft.py": "sft_vlm_3B.yaml",
    "run_vlm_grpo.py": "vlm_grpo_3B.yaml",
}


def default_configuration(script: str) -> str:
    """Return the configuration that a script of NeMo-RL reads without --config."""
    folder, _, name = script.rpartition("/")
    return f"{folder}/configs/{_CONFIGURATIONS.get(name, name)}".lstrip("/")


def of_values(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the settings of a configuration with its `defaults` merged in; None if it is not one of NeMo-RL."""
    policy = values.get("policy")
    if not isinstance(policy, Mapping) or not ({"cluster", "megatron_cfg", "dtensor_cfg"} & {*values, *policy}):
        return None
    return flat(values)


def translate(run: TrainingRun) -> Translation:
    """Return what a run is in a matrix. ValueError if its policy does not train with Megatron."""
    settings = Settings(run.settings)
    if not settings.on(f"{_MEGATRON}enabled"):
        raise ValueError(
            "trains without Megatron: policy.megatron_cfg.enabled is not true, and NeMo-RL's other backend is not "
            "tested here"
        )
    result = Translation(project="nemo-rl", trainer="harness", packing="", documents="adversarial")
    for section in _SWITCHED:
        if not settings.on(f"{section}enabled"):
            settings.drop(section)
    layout(settings, result, _MEGATRON, _ranks(settings))
    named_model(result, settings.take("policy.model_name"))
    _packing(settings, result)
    _training(settings, result)
    for section in ("distributed_data_parallel_config.", "optimizer.", ""):
        of_megatron(settings, result, f"{_MEGATRON}{section}")
    schedule(settings, result, (f"{_MEGATRON}scheduler.", f"{_MEGATRON}optimizer."))
    finish(settings, result, _REASONS, whole=run.defaults_known)
    return result


def _ranks(settings: Settings) -> int | None:
    """Return the ranks that train: those of the cluster without those that only generate."""
    nodes, per_node = settings.size("cluster.num_nodes", 1), settings.size("cluster.gpus_per_node", 0)
    colocated = settings.take("policy.generation.colocated.enabled", True)
    if colocated is False:
        own = settings.size("policy.generation.colocated.resources.num_nodes", 0)
        gpus = settings.size("policy.generation.colocated.resources.gpus_per_node", 0)
        return (nodes - own) * per_node if own else nodes * (per_node - gpus)
    return nodes * per_node or None


def _packing(settings: Settings, result: Translation) -> None:
    keys = result.keys
    longest = keys["train.seq_length"] = settings.size("policy.max_total_sequence_length", 64)
    size = keys["micro_batch_size"] = settings.size("policy.train_micro_batch_size")
    if not (dynamic := settings.on("policy.dynamic_batching.enabled")):
        settings.drop("policy.dynamic_batching.")
    multiple = settings.size("policy.make_sequence_length_divisible_by", 1)
    if settings.on("policy.sequence_packing.enabled"):
        result.packing = "nemo_rl"
        if multiple > 1:
            keys["packing_options.pad_seq_to_mult"] = multiple
        keys["packing_options.fuse_loss"] = settings.on("policy.sequence_packing.fuse_loss")
        if (order := settings.take("policy.sequence_packing.microbatch_order", "packer")) != "packer":
            result.leave_out(f"policy.sequence_packing.microbatch_order={order}", NO_KEY)
        algorithm = settings.take("policy.sequence_packing.algorithm")
        if algorithm in ALGORITHMS:
            keys["packing_options.packing_algorithm"] = algorithm
            if (row := settings.size("policy.sequence_packing.train_mb_tokens", 0)) > longest:
                keys["packing_options.max_tokens_per_microbatch"] = row
        elif algorithm:
            result.leave_out(f"policy.sequence_packing.algorithm={algorithm}", NO_KEY)
        if size > 1:
            keys["micro_batch_size"] = 1
            reason = "a micro-batch of a run that packs is one row, as long as sequence_packing.train_mb_tokens allows"
            result.leave_out(f"policy.train_micro_batch_size={size}", reason)
        return
    result.not_packed = "the run does not pack: policy.sequence_packing.enabled is not true"
    if dynamic:
        result.not_packed += "; policy.dynamic_batching changes how many documents a micro-batch has"


def _training(settings: Settings, result: Translation) -> None:
    keys = result.keys
    precision = str(settings.take("policy.precision", "bfloat16"))
    keys["dtype"] = "fp32" if precision == "float32" else "bf16"
    for name in ("pipeline_dtype", "optimizer.bf16", "optimizer.fp16"):
        settings.take(f"{_MEGATRON}{name}")
    settings.take("policy.max_grad_norm")  # Megatron's optimizer reads its own clip_grad
    keys["train.global_batch"] = settings.size("policy.train_global_batch_size", 8)
    keys["train.lr"] = float(settings.take(f"{_MEGATRON}optimizer.lr", 1e-3))
    sharded = settings.on(f"{_MEGATRON}optimizer.use_distributed_optimizer")
    overlaps = [
        settings.on(f"{_MEGATRON}distributed_data_parallel_config.{name}")
        for name in ("overlap_grad_reduce", "overlap_param_gather")
    ]
    keys["distributed_optimizer"] = ("overlap" if all(overlaps) else "on") if sharded else "off"
    settings.take(f"{_MEGATRON}enabled")
    if not settings.on(f"{_MEGATRON}activation_checkpointing"):
        settings.take(f"{_MEGATRON}recompute_granularity")
