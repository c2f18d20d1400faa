"""From a configuration of NeMo-RL, with the overrides of a command, to keys of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.matrix.intake.configuration import flat
from harness.matrix.intake.fields import (
    DATA,
    ROLLOUT,
    RUN,
    SPEED,
    UNTRAINED,
    finish,
    layout,
    named_model,
    of_megatron,
)
from harness.matrix.intake.run import Settings, TrainingRun, Translation

SCRIPTS = (
    *("run_sft.py", "run_grpo.py", "run_dpo.py", "run_ppo.py", "run_rm.py", "run_distillation.py", "run_vlm_sft.py"),
    *("run_vlm_grpo.py", "run_grpo_single_controller.py"),
)
_MEGATRON = "policy.megatron_cfg."
_REASONS: Mapping[str, str] = {
    "policy.generation.": ROLLOUT,
    "policy.tokenizer.": DATA,
    "policy.dtensor_cfg.": "it is of NeMo-RL's other backend",
    "policy.optimizer": "it is of NeMo-RL's other backend",
    "policy.scheduler": "it is of NeMo-RL's other backend",
    "policy.dynamic_batching.": "it is off, or changes how many documents a micro-batch has",
    "policy.sequence_packing.": "micro-batches have as many documents as fit into a row",
    "policy.": "it is not part of a training step",
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
    layout(settings, result, _MEGATRON, _ranks(settings))
    named_model(result, settings.take("policy.model_name"))
    _packing(settings, result)
    _training(settings, result)
    for section in ("distributed_data_parallel_config.", "optimizer.", "scheduler.", ""):
        of_megatron(settings, result, f"{_MEGATRON}{section}")
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
    multiple = settings.size("policy.make_sequence_length_divisible_by", 1)
    if settings.on("policy.sequence_packing.enabled"):
        result.packing = "nemo_rl"
        if multiple > 1:
            result.keys["packing_options.pad_seq_to_mult"] = multiple
        result.keys["packing_options.fuse_loss"] = settings.on("policy.sequence_packing.fuse_loss")
        algorithm = settings.take("policy.sequence_packing.algorithm")
        if algorithm:
            result.leave_out(f"policy.sequence_packing.algorithm={algorithm}", "the harness chooses what a row holds")
        return
    result.not_packed = "the run does not pack: policy.sequence_packing.enabled is not true"
    if settings.on("policy.dynamic_batching.enabled"):
        result.not_packed += "; policy.dynamic_batching changes how many documents a micro-batch has"


def _training(settings: Settings, result: Translation) -> None:
    keys = result.keys
    precision = str(settings.take("policy.precision", "bfloat16"))
    keys["dtype"] = "fp32" if precision == "float32" else "bf16"
    keys["train.seq_length"] = settings.size("policy.max_total_sequence_length", 64)
    keys["train.global_batch"] = settings.size("policy.train_global_batch_size", 8)
    keys["micro_batch_size"] = 1 if result.packing else settings.size("policy.train_micro_batch_size")
    settings.take("policy.train_micro_batch_size")
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
    _schedule(settings, result)


def _schedule(settings: Settings, result: Translation) -> None:
    """Drop the parts of a constant weight decay, which is the optimizer's."""
    scheduler = f"{_MEGATRON}scheduler."
    if str(settings.take(f"{scheduler}weight_decay_incr_style", "constant")) == "constant":
        for name in ("start_weight_decay", "end_weight_decay"):
            settings.take(f"{scheduler}{name}")
