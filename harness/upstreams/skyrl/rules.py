"""Rules of SkyRL's packing and worker."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.matrix.rules.packing import with_option
from harness.matrix.rules.rule import Rule


def packing_has_switch(config: CellConfig) -> str | None:
    if config.options.remove_microbatch_padding or "remove_microbatch_padding" in config.path.options:
        return None
    return (
        f"remove_microbatch_padding is false, and packing is {config.data_path}: only "
        f"{with_option('remove_microbatch_padding')} has this switch"
    )


def controller_packs_for_worker(config: CellConfig) -> str | None:
    if config.trainer == "skyrl" or not config.options.use_sequence_packing:
        return None
    return "use_sequence_packing is true: SkyRL's controller packs the batches of its own trainer; set trainer: skyrl"


def controller_packs_only(config: CellConfig) -> str | None:
    options = config.options
    if not options.use_sequence_packing or options.remove_microbatch_padding:
        return None
    return "use_sequence_packing is true and remove_microbatch_padding is false, which SkyRL turns on then"


def worker_interleaves(config: CellConfig) -> str | None:
    vpp = config.layout.vpp
    if config.trainer != "skyrl" or vpp == 1:
        return None
    return f"vpp is {vpp}, and SkyRL's worker creates process groups without a virtual size, so no schedule interleaves"


def worker_orders_ranks(config: CellConfig) -> str | None:
    if config.trainer != "skyrl" or not config.layout.pp_before_dp:
        return None
    return "pp_before_dp is true, and SkyRL's worker creates process groups in Megatron's default order"


def worker_shards_optimizer(config: CellConfig) -> str | None:
    if config.trainer != "skyrl" or config.distributed_optimizer != "off":
        return None
    return "distributed_optimizer is off, and SkyRL's worker always shards the optimizer over replicas"


def worker_packs(config: CellConfig) -> str | None:
    if config.trainer != "skyrl" or config.options.remove_microbatch_padding:
        return None
    return "remove_microbatch_padding is false, and the harness observes SkyRL's loss of packed rows only"


def worker_means_over_step(config: CellConfig) -> str | None:
    if config.trainer != "skyrl" or config.options.calculate_per_token_loss:
        return None
    return (
        "calculate_per_token_loss is false, and the loss of SkyRL's trainer is the mean over a step's tokens in any "
        "case: its collator divides the loss mask by their number"
    )


def worker_evaluates(config: CellConfig) -> str | None:
    if config.trainer != "skyrl" or not config.train.eval_interval:
        return None
    return f"train.eval_interval is {config.train.eval_interval}, and SkyRL's worker does not evaluate"


def worker_reads_a_model(config: CellConfig) -> str | None:
    """The worker builds what Megatron-Bridge makes of a model of Hugging Face: Llama, Qwen 2 or Qwen 3."""
    model = config.model
    if config.trainer != "skyrl":
        return None
    both = [name for name in ("qkv_bias", "qk_layernorm", "rope_scaling") if getattr(model, name)]
    return f"model.{both[0]} with model.{both[1]}, which no model has that the worker reads" if both[1:] else None


SKYRL_RULES: tuple[Rule, ...] = (
    Rule("packing.skyrl-switch", "harness: remove_microbatch_padding is SkyRL's", packing_has_switch),
    Rule("packing.skyrl-controller", "SkyRL SFTTrainer: PackedDataCollator", controller_packs_for_worker),
    Rule("packing.skyrl-layout", "SkyRL validate_sft_cfg: requires the THD layout", controller_packs_only),
    Rule(
        "trainer.skyrl-vpp",
        "SkyRL MegatronStrategy.setup_distributed: initialize_model_parallel without a virtual size",
        worker_interleaves,
    ),
    Rule(
        "trainer.skyrl-order",
        "SkyRL MegatronStrategy.setup_distributed: initialize_model_parallel without an order",
        worker_orders_ranks,
    ),
    Rule(
        "trainer.skyrl-optimizer",
        "SkyRL make_megatron_module: use_distributed_optimizer is True",
        worker_shards_optimizer,
    ),
    Rule(
        "loss.skyrl-means",
        "SkyRL DefaultCollator: the loss mask is scaled by the tokens of a step",
        worker_means_over_step,
    ),
    Rule("trainer.skyrl-evaluation", "SkyRL MegatronPolicyWorkerBase", worker_evaluates),
    Rule(
        "trainer.skyrl-model",
        "Megatron-Bridge Qwen2Bridge and Qwen3Bridge: provider_bridge without rope_scaling, and Qwen 3 without biases",
        worker_reads_a_model,
    ),
    Rule("trainer.skyrl-packing", "harness: the adapters of upstream's trainers", worker_packs),
)
