"""From SkyRL's configuration, or the overrides of its entry points, to keys of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

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
    trainer_of,
)
from harness.matrix.intake.keys import declaration
from harness.matrix.intake.run import Settings, TrainingRun, Translation
from harness.upstreams.skyrl.spec import SKYRL_TRAINER

SCRIPTS = (
    *("main_base", "main_sft", "main_dapo", "main_dapo_fully_async", "main_async", "main_fully_async"),
    *("main_full_ctx", "main_sft_with_callbacks", "main_tis_dapo", "main_on_policy_distill", "main_fully_async_sim"),
    *(
        "main_custom_adv_est",
        "main_custom_policy_loss",
        "main_llm_judge",
        "main_multiply",
        "main_base.py",
        "main_sft.py",
    ),
)
_OTHER = "it is of SkyRL's other backend"
_REASONS: Mapping[str, str] = {
    **dict.fromkeys(("generator.", "environment.", "trainer.algorithm.", "trainer.critic.", "trainer.ref."), ROLLOUT),
    **dict.fromkeys(
        ("data.", "train_", "eval_", "dataset", "pretokenized", "messages_key", "tools_key", "system_key"), DATA
    ),
    "trainer.policy.megatron_config.lora_config.": "adapters are keys of Megatron-Bridge's cells: `model.peft`",
    "megatron_config.lora_config.": "adapters are keys of Megatron-Bridge's cells: `model.peft`",
    "trainer.policy.model.lora.": "adapters are keys of Megatron-Bridge's cells: `model.peft`",
    "model.lora.": "adapters are keys of Megatron-Bridge's cells: `model.peft`",
    "trainer.policy.megatron_config.": SPEED,
    "megatron_config.": SPEED,
    **dict.fromkeys(("trainer.policy.fsdp_config", "fsdp_config"), _OTHER),
    **dict.fromkeys(
        ("trainer.policy.optimizer_config.", "optimizer_config."), "the harness's optimizer has no such setting"
    ),
    **dict.fromkeys(("trainer.policy.", "model."), UNTRAINED),
    "trainer.max_prompt_length": DATA,
    **dict.fromkeys(
        ("trainer.", "placement", "logger", "project_name", "run_name", "ckpt_", "resume_", "hf_", "num_"), RUN
    ),
    **dict.fromkeys(("export_path", "seed", "tags", "max_ckpts", "enable_ray", "sampler", "record_memory"), RUN),
    **dict.fromkeys(("micro_forward", "trainer.micro_forward", "async_batch", "dataloader", "torch_profiler"), SPEED),
}
_OPTIMIZER = {"weight_decay": "weight_decay", "max_grad_norm": "clip_grad"}


class _Sections(NamedTuple):
    """Where an entry point of SkyRL has its settings."""

    trainer: str
    policy: str
    placement: tuple[str, str]  # nodes, and GPUs of each
    batch: str
    defaults: Mapping[str, Any]


_RL = _Sections(
    "trainer.",
    "trainer.policy.",
    ("trainer.placement.policy_num_nodes", "trainer.placement.policy_num_gpus_per_node"),
    "trainer.policy_mini_batch_size",
    {"trainer.strategy": "fsdp", "trainer.remove_microbatch_padding": True},
)
_SFT = _Sections(
    "",
    "",
    ("placement.num_nodes", "placement.num_gpus_per_node"),
    "batch_size",
    {
        "strategy": "megatron",
        "remove_microbatch_padding": True,
        "megatron_config.tensor_model_parallel_size": 2,
        "megatron_config.pipeline_model_parallel_size": 2,
    },
)


def of_values(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the settings of a resolved configuration; None if it is not one of SkyRL."""
    trainer = values.get("trainer")
    own = isinstance(trainer, Mapping) and "policy" in trainer and "strategy" in trainer
    return flat(values) if own or {"megatron_config", "strategy"} <= {*values} else None


def translate(run: TrainingRun) -> Translation:
    """Return what a run is in a matrix. ValueError if it does not train with Megatron."""
    given = dict(run.settings)
    sections = _RL if any(name.startswith("trainer.") for name in given) else _SFT
    if (old := given.pop(f"{sections.trainer}use_sample_packing", None)) is not None:
        given[f"{sections.trainer}remove_microbatch_padding"] = old
    missing = {name: value for name, value in sections.defaults.items() if name not in given}
    settings = Settings({**missing, **given})
    strategy = settings.take(f"{sections.trainer}strategy")
    if strategy != "megatron":
        raise ValueError(f"trains without Megatron: {sections.trainer}strategy is {strategy}, and must be megatron")
    result = Translation(project="skyrl", trainer="harness", packing="skyrl", documents="adversarial")
    result.same += [f"{name} {value} (assumed: SkyRL's default)" for name, value in missing.items()]
    nodes, per_node = (settings.size(name, default) for name, default in zip(sections.placement, (1, 0), strict=True))
    megatron = f"{sections.policy}megatron_config."
    layout(settings, result, megatron, nodes * per_node or None, sp=True)
    named_model(result, settings.take(f"{sections.policy}model.path"))
    _packing(settings, result, sections.trainer)
    _training(settings, result, sections)
    for section in ("transformer_config_kwargs.", "ddp_config.", ""):
        of_megatron(settings, result, f"{megatron}{section}")
    if result.keys["packing_options.remove_microbatch_padding"] and "vpp" not in result.keys:
        result.trainer = trainer_of(result, SKYRL_TRAINER)
    finish(settings, result, _REASONS, whole=run.defaults_known)
    return result


def _packing(settings: Settings, result: Translation, section: str) -> None:
    """Choose how micro-batches are made; SkyRL's path also has padded batches."""
    packs = settings.on(f"{section}remove_microbatch_padding")
    result.keys["packing_options.remove_microbatch_padding"] = packs
    if not packs:
        result.leave_out(
            f"{section}remove_microbatch_padding=false",
            "the run does not pack: cells have SkyRL's padded batches (remove_microbatch_padding: false)",
        )
    binned = settings.on(f"{section}use_sequence_packing")
    most = settings.size(f"{section}max_tokens_per_microbatch", -1)
    length = settings.size("max_length", 0)
    if binned and declaration("packing_options.use_sequence_packing"):
        result.keys["packing_options.use_sequence_packing"] = True
        # Rows of a micro-batch; SkyRL then ignores the number of documents.
        result.keys["micro_batch_size"] = most // length if most > 0 and length else 1
    elif binned or most > 0:
        reason = "a micro-batch has the documents that the matrix says"
        result.leave_out(f"{section}use_sequence_packing, {section}max_tokens_per_microbatch", reason)
    result.keys["train.seq_length"] = length


def _training(settings: Settings, result: Translation, sections: _Sections) -> None:
    keys, trainer = result.keys, sections.trainer
    keys["dtype"] = "bf16"
    keys.setdefault("micro_batch_size", settings.size(f"{trainer}micro_train_batch_size_per_gpu", 1))
    keys["train.global_batch"] = settings.size(sections.batch, 8)
    keys["train.seq_length"] = keys["train.seq_length"] or (
        settings.size("trainer.max_prompt_length", 32)
        + settings.size("generator.sampling_params.max_generate_length", 32)
    )
    optimizer = f"{sections.policy}optimizer_config."
    keys["train.lr"] = float(settings.take(f"{optimizer}lr", 1e-3))
    keys["distributed_optimizer"] = "on"  # make_megatron_module always shards it
    for own, name in _OPTIMIZER.items():
        value = settings.take(f"{optimizer}{own}")
        if value is not None:
            result.args[name] = (str(value),)
