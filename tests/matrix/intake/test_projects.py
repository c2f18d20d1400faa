"""Configurations and commands of Megatron-Bridge, SkyRL, NeMo-RL, verl, slime and ms-swift in the words of a matrix.

The settings are those of public files of these projects, in short.
"""

from collections.abc import Mapping
from typing import Any

import pytest

from harness.matrix.intake.read import read, translate
from harness.matrix.intake.run import Translation


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with dotted names as YAML has them."""
    values: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, last = name.split(".")
        target = values
        for section in sections:
            target = target.setdefault(section, {})
        target[last] = value
    return values


def of_file(settings: Mapping[str, Any]) -> Translation:
    return translate(read("", nested(settings), "c.yaml"))


def of_command(text: str, **files: Mapping[str, Any]) -> Translation:
    return translate(read(text, None, "train.sh", lambda name: nested(files["file"]) if files else None))


def reason_of(result: Translation, setting: str) -> str:
    return next(entry.reason for entry in result.left_out if entry.setting.startswith(setting))


NEMO: dict[str, Any] = {
    "policy.model_name": "meta-llama/Llama-3.1-8B",
    "policy.megatron_cfg.enabled": True,
    "policy.megatron_cfg.tensor_model_parallel_size": 4,
    "policy.megatron_cfg.pipeline_model_parallel_size": 1,
    "policy.megatron_cfg.sequence_parallel": False,
    "policy.megatron_cfg.activation_checkpointing": False,
    "policy.megatron_cfg.recompute_granularity": "full",
    "policy.megatron_cfg.moe_router_load_balancing_type": "aux_loss",
    "policy.megatron_cfg.optimizer.use_distributed_optimizer": True,
    "policy.megatron_cfg.optimizer.clip_grad": "${policy.max_grad_norm}",
    "policy.megatron_cfg.scheduler.start_weight_decay": 0.01,
    "policy.megatron_cfg.scheduler.weight_decay_incr_style": "constant",
    "policy.max_grad_norm": 1.0,
    "policy.make_sequence_length_divisible_by": "${mul:16, ${policy.megatron_cfg.tensor_model_parallel_size}}",
    "policy.sequence_packing.enabled": True,
    "policy.train_global_batch_size": 128,
    "policy.max_total_sequence_length": 4096,
    "cluster.num_nodes": 2,
    "cluster.gpus_per_node": 8,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tp", 4),
        ("dp", 4),
        ("sp", False),
        ("model.kv_heads", 8),
        ("packing_options.pad_seq_to_mult", 64),
        ("train.seq_length", 4096),
        ("dtype", "bf16"),
        ("distributed_optimizer", "on"),
    ],
)
def test_a_configuration_of_nemo_rl_is_keys(key: str, value: Any) -> None:
    assert of_file(NEMO).keys[key] == value


def test_of_nemo_rl_what_is_switched_off_is_not_a_key() -> None:
    result = of_file(NEMO)
    assert (result.project, result.packing) == ("nemo-rl", "nemo_rl")
    assert not {"recompute", "model.moe.aux_loss", "train.start_weight_decay"} & {*result.keys}
    assert result.args["clip_grad"] == ("1.0",)


def test_nemo_rl_without_packing_says_so() -> None:
    result = of_file(NEMO | {"policy.sequence_packing.enabled": False, "policy.dynamic_batching.enabled": True})
    assert result.packing == ""
    assert "sequence_packing.enabled is not true; policy.dynamic_batching" in result.not_packed


def test_ranks_that_only_generate_are_not_counted() -> None:
    apart = {
        "policy.generation.colocated.enabled": False,
        "policy.generation.colocated.resources.num_nodes": 1,
        "policy.generation.colocated.resources.gpus_per_node": 8,
    }
    assert of_file(NEMO | apart).keys["dp"] == 2


def test_a_command_of_nemo_rl_reads_its_configuration() -> None:
    text = "uv run examples/run_sft.py --config x.yaml policy.megatron_cfg.context_parallel_size=2 cluster.num_nodes=4"
    keys = of_command(text, file=NEMO).keys
    assert (keys["tp"], keys["cp"], keys["dp"]) == (4, 2, 4)


def test_a_configuration_that_is_not_found_is_named() -> None:
    with pytest.raises(ValueError, match=r"reads the configuration examples/configs/sft\.yaml, which is not found"):
        of_command("uv run examples/run_sft.py cluster.num_nodes=1")


@pytest.mark.parametrize(
    "text",
    [
        "python -m skyrl.train.entrypoints.main_base trainer.strategy=fsdp2",
        "python -m verl.trainer.main_ppo actor_rollout_ref.actor.strategy=fsdp",
        "torchrun -m verl.trainer.sft_trainer engine=fsdp data.train_batch_size=8",
    ],
)
def test_a_run_without_megatron_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="trains without Megatron"):
        of_command(text)


def test_nemo_rls_own_packer_fills_the_rows_of_its_budget() -> None:
    packer = {
        "policy.sequence_packing.algorithm": "modified_first_fit_decreasing",
        "policy.sequence_packing.train_mb_tokens": "${mul:${policy.max_total_sequence_length}, 2}",
        "policy.train_micro_batch_size": 2,
    }
    result = of_file(NEMO | packer)
    assert result.keys["packing_options.packing_algorithm"] == "modified_first_fit_decreasing"
    assert result.keys["packing_options.max_tokens_per_microbatch"] == 8192
    assert result.keys["micro_batch_size"] == 1
    assert "is one row" in reason_of(result, "policy.train_micro_batch_size=2")


@pytest.mark.parametrize(
    "setting",
    [
        {"policy.megatron_cfg.optimizer.bf16": True},
        {"policy.megatron_cfg.peft.enabled": False, "policy.megatron_cfg.peft.dim": 8},
        {"policy.dynamic_batching.enabled": False, "policy.dynamic_batching.train_mb_tokens": 4096},
        {"policy.megatron_cfg.defer_fp32_logits": False},
        {"policy.sequence_packing.microbatch_order": "packer"},
        {"policy.max_grad_norm": 1.0},
    ],
)
def test_what_cells_of_nemo_rl_have_or_the_run_has_off_is_not_left_out(setting: dict[str, Any]) -> None:
    assert of_file(NEMO | setting).left_out == of_file(NEMO).left_out


def test_an_order_of_micro_batches_that_cells_cannot_have_is_left_out() -> None:
    result = of_file(NEMO | {"policy.sequence_packing.microbatch_order": "largest_first"})
    assert "no key for it" in reason_of(result, "policy.sequence_packing.microbatch_order=largest_first")


PPO = """python3 -m verl.trainer.main_ppo --config-name='ppo_megatron_trainer.yaml' \\
 data.max_prompt_length=$((1024 * 2)) data.max_response_length=$((1024 * 8)) \\
 actor_rollout_ref.model.path=deepseek-ai/DeepSeek-V3 actor_rollout_ref.actor.optim.lr=1e-6 \\
 actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=12 \\
 actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8 \\
 actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 \\
 actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1 \\
 actor_rollout_ref.rollout.tensor_model_parallel_size=32 \\
 +actor_rollout_ref.actor.megatron.override_transformer_config.num_layers_in_last_pipeline_stage=6 \\
 +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\
 +actor_rollout_ref.actor.megatron.override_transformer_config.moe_token_dispatcher_type=flex \\
 actor_rollout_ref.actor.use_dynamic_bsz=True trainer.n_gpus_per_node=8 trainer.nnodes=12 "$@"
"""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tp", 8),
        ("pp", 12),
        ("ep", 8),
        ("etp", 1),
        ("last_stage_layers", 6),
        ("sp", True),
        ("model.mla.kv_lora_rank", 512),
        ("model.moe.experts", 256),
        ("model.moe.layer_freq", f"[0,0,0{',1' * 58}]"),
        ("train.seq_length", 10240),
        ("recompute", "full"),
        ("packing_options.calculate_per_token_loss", False),
    ],
)
def test_overrides_of_verl_are_keys(key: str, value: Any) -> None:
    assert of_command(PPO).keys[key] == value


def test_of_verl_defaults_that_are_assumed_are_named() -> None:
    result = of_command(PPO)
    assert result.packing == "verl"
    assert any("sequence_parallel True (assumed: verl's default)" in text for text in result.same)
    assert "alltoall, which sends the same tokens, is tested instead" in reason_of(
        result, "actor_rollout_ref.actor.megatron.override_transformer_config.moe_tok"
    )
    assert "rollouts" in reason_of(result, "actor_rollout_ref.rollout.tensor_model_parallel_size")


@pytest.mark.parametrize(
    ("switches", "packing"),
    [
        ("actor_rollout_ref.actor.megatron.use_remove_padding=False", ""),
        ("actor_rollout_ref.model.use_remove_padding=False", "verl"),
        ("actor_rollout_ref.model.use_remove_padding=False trainer.use_legacy_worker_impl=disable", ""),
    ],
)
def test_which_workers_of_verl_train_decides_which_switch_packs(switches: str, packing: str) -> None:
    assert of_command(PPO.replace('"$@"', switches)).packing == packing


SKYRL = """uv run --isolated --extra megatron python -m skyrl.train.main_sft strategy=megatron \\
 model.path=Qwen/Qwen2.5-0.5B-Instruct max_length=4096 batch_size=24 micro_train_batch_size_per_gpu=6 \\
 remove_microbatch_padding=true placement.num_nodes=1 placement.num_gpus_per_node=4 \\
 megatron_config.tensor_model_parallel_size=1 megatron_config.pipeline_model_parallel_size=1 ckpt_path="$CKPT" \\
"""


def test_overrides_of_skyrl_are_keys() -> None:
    result = of_command(SKYRL)
    assert (result.project, result.packing, result.trainer) == ("skyrl", "skyrl", "skyrl")
    keys = result.keys
    assert (keys["tp"], keys["dp"], keys["micro_batch_size"], keys["model.kv_heads"]) == (1, 4, 6, 2)


def test_skyrl_has_sizes_of_its_own_where_the_command_says_none() -> None:
    result = of_command("python -m skyrl.train.main_sft model.path=x placement.num_gpus_per_node=8")
    assert (result.keys["tp"], result.keys["pp"], result.keys["dp"]) == (2, 2, 2)
    assert "megatron_config.tensor_model_parallel_size 2 (assumed: SkyRL's default)" in result.same


@pytest.mark.parametrize("name", ["remove_microbatch_padding", "use_sample_packing"])
def test_skyrl_without_packing_has_padded_batches(name: str) -> None:
    result = of_command(SKYRL.replace("remove_microbatch_padding=true", f"{name}=false"))
    assert result.keys["packing_options.remove_microbatch_padding"] is False
    assert "does not pack" in reason_of(result, "remove_microbatch_padding=false")


def test_a_model_that_skyrls_cells_cannot_have_trains_in_the_harnesses_loop() -> None:
    assert of_command(SKYRL.replace("Qwen2.5-0.5B-Instruct", "Qwen3-30B-A3B")).trainer == "harness"


def test_a_model_whose_sizes_nobody_knows_is_named() -> None:
    result = of_command(SKYRL.replace("Qwen2.5-0.5B-Instruct", "my-own"))
    assert "does not say its sizes: a dense model" in reason_of(result, "the model Qwen/my-own")


BRIDGE: dict[str, Any] = {
    "_target_": "megatron.bridge.training.config.ConfigContainer",
    "model._target_": "megatron.bridge.models.llama.llama_provider.Llama31ModelProvider8B",
    "model.tensor_model_parallel_size": 2,
    "model.pipeline_model_parallel_size": 2,
    "model.context_parallel_size": 1,
    "model.sequence_parallel": True,
    "model.num_layers": 32,
    "model.hidden_size": 4096,
    "model.ffn_hidden_size": 14336,
    "model.num_attention_heads": 32,
    "model.num_query_groups": 8,
    "model.share_embeddings_and_output_weights": False,
    "model.moe_router_topk": 2,
    "model.moe_z_loss_coeff": None,
    "model.calculate_per_token_loss": True,
    "train.micro_batch_size": 1,
    "train.global_batch_size": 128,
    "optimizer.lr": 1e-4,
    "optimizer.adam_beta2": 0.98,
    "optimizer.use_distributed_optimizer": True,
    "ddp.overlap_grad_reduce": True,
    "ddp.overlap_param_gather": True,
    "ddp.average_in_collective": False,
    "mixed_precision": "bf16_mixed",
    "dataset.seq_length": 2048,
}


def test_a_dump_of_megatron_bridge_is_keys() -> None:
    result = of_file(BRIDGE)
    keys = result.keys
    assert (keys["tp"], keys["pp"], keys["sp"], keys["distributed_optimizer"]) == (2, 2, True, "overlap")
    assert not any(name.startswith("model.moe") for name in keys)
    assert result.args["adam_beta2"] == ("0.98",)


def test_a_dump_that_does_not_say_its_ranks_has_no_replicas_to_keep() -> None:
    result = of_file(BRIDGE)
    assert "dp" not in result.keys
    assert "does not say on how many ranks" in reason_of(result, "dp")


@pytest.mark.parametrize(
    ("function", "gated", "activation"),
    [
        ({"_target_": "torch.nn.functional.silu", "_call_": False}, True, "swiglu"),
        ("silu", True, "swiglu"),
        ("gelu", False, "gelu"),
        ("silu", False, None),
    ],
)
def test_an_activation_is_a_function_with_or_without_a_gate(function: Any, gated: bool, activation: str | None) -> None:
    result = of_file(BRIDGE | {"model.activation_func": function, "model.gated_linear_unit": gated})
    assert result.keys.get("model.activation") == activation
    assert any("activation_func" in entry.setting for entry in result.left_out) is (activation is None)


@pytest.mark.parametrize("scaled", [True, False])
def test_the_factor_of_positions_that_are_not_scaled_is_no_key(scaled: bool) -> None:
    keys = of_file(BRIDGE | {"model.rope_scaling": scaled, "model.rope_scaling_factor": 8.0}).keys
    assert ("model.rope_scaling_factor" in keys) is scaled


SCHEDULED = {
    "scheduler.lr_decay_style": "cosine",
    "scheduler.lr_warmup_iters": 50,
    "scheduler.lr_wsd_decay_style": "minus_sqrt",
    "scheduler.start_weight_decay": 0.033,
    "scheduler.end_weight_decay": 0.033,
    "scheduler.weight_decay_incr_style": "constant",
    "optimizer.weight_decay": 0.1,
    "optimizer.min_lr": 0.0,
}


def test_the_schedule_of_a_dump_is_keys() -> None:
    keys = of_file(BRIDGE | SCHEDULED).keys
    assert (keys["train.lr_decay_style"], keys["train.lr_warmup_iters"], keys["train.min_lr"]) == ("cosine", 50, 0.0)
    assert not {"train.lr_wsd_decay_style", "train.end_weight_decay"} & {*keys}


def test_a_constant_decay_of_the_scheduler_replaces_the_optimizers() -> None:
    result = of_file(BRIDGE | SCHEDULED)
    assert result.args["weight_decay"] == ("0.033",)
    assert "scheduler.end_weight_decay replaces it" in reason_of(result, "weight_decay 0.1")


def test_a_decay_that_grows_is_keys() -> None:
    grows = {"scheduler.weight_decay_incr_style": "linear", "scheduler.end_weight_decay": 0.1}
    result = of_file(BRIDGE | SCHEDULED | grows)
    assert [result.keys[f"train.{name}"] for name in ("start_weight_decay", "end_weight_decay")] == [0.033, 0.1]
    assert result.args["weight_decay"] == ("0.1",)


@pytest.mark.parametrize(
    ("switches", "packing", "trainer"),
    [
        ({"dataset.packed_sequence_specs.packed_sequence_size": 4096}, "bridge_offline", "bridge"),
        (
            {"dataset.enable_offline_packing": True, "dataset.offline_packing_specs.packed_sequence_size": 4096},
            "bridge_offline",
            "bridge",
        ),
        ({"dataset.enable_in_batch_packing": True, "train.micro_batch_size": 2}, "bridge_in_batch", "harness"),
        ({"dataset.pack_sequences_in_batch": True, "train.micro_batch_size": 2}, "bridge_in_batch", "harness"),
        ({"model.context_parallel_size": 2, "dataset.dataset_root": "/data"}, "bridge_long", "bridge"),
        ({}, "", "harness"),
    ],
)
def test_the_switch_of_the_data_set_names_the_data_path(switches: dict[str, Any], packing: str, trainer: str) -> None:
    result = of_file(BRIDGE | switches)
    assert (result.packing, result.trainer, bool(result.not_packed)) == (packing, trainer, not packing)


SLIME = """PERF=(--tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8)
ray job submit --runtime-env-json='{
  "env": {"A": "${B}"}
}' -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 32 \\
 --num-layers 48 --hidden-size 2048 --num-attention-heads 32 --group-query-attention --num-query-groups 4 \\
 --num-experts 128 --moe-router-topk 8 --swiglu --disable-bias-linear --recompute-granularity full \\
 --sglang-cuda-graph-bs 1 2 $(seq 16 8 256) ${PERF[@]} ${NOTHING[@]}
"""


def test_megatrons_flags_of_slime_are_keys() -> None:
    result = of_command(SLIME)
    keys = result.keys
    assert (keys["tp"], keys["ep"], keys["dp"], keys["recompute"], keys["dtype"]) == (4, 8, 2, "full", "bf16")
    assert (result.packing, result.trainer) == ("reference", "harness")
    assert "not tested here" in reason_of(result, "slime's packing")
    assert reason_of(result, "sglang_cuda_graph_bs") == "only a shell knows its value"


def test_a_command_of_slime_without_sizes_asks_for_its_lines() -> None:
    with pytest.raises(ValueError, match="says no size of the model"):
        of_command("python3 train.py --actor-num-nodes 1 --rollout-batch-size 32")


def test_megatrons_flags_of_ms_swift_are_keys() -> None:
    text = """NPROC_PER_NODE=8 \\
    megatron sft --model Qwen/Qwen3-30B-A3B-Base --tensor_model_parallel_size 2 --expert_model_parallel_size 4 \\
     --sequence_parallel true --max_length 2048 --packing true"""
    result = of_command(text)
    keys = result.keys
    assert (keys["tp"], keys["dp"], keys["sp"], keys["model.moe.topk"], keys["train.seq_length"]) == (
        2,
        4,
        True,
        8,
        2048,
    )
    assert result.packing == "reference"


def test_a_value_that_only_a_shell_knows_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"only a shell knows: \$\(nproc\)"):
        of_command("python -m skyrl.train.main_sft strategy=megatron placement.num_gpus_per_node=$(nproc)")


def test_hydras_list_of_defaults_is_not_a_configuration() -> None:
    with pytest.raises(ValueError, match="--cfg job --resolve"):
        read("", {"defaults": [{"model": "hf"}, "_self_"], "data": {}}, "x.yaml")
