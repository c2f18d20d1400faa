"""From verl's configuration, or the overrides of its entry points, to keys of a matrix."""

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
)
from harness.matrix.intake.run import Settings, TrainingRun, Translation

SCRIPTS = (
    "verl.trainer.main_ppo",
    "verl.trainer.sft_trainer",
    "verl.trainer.fsdp_sft_trainer",
    "verl/trainer/main_ppo.py",
)
_REASONS: Mapping[str, str] = {
    "actor_rollout_ref.rollout": ROLLOUT,
    "actor_rollout_ref.ref.": "it is of the reference policy, which is not trained",
    "actor_rollout_ref.hybrid_engine": ROLLOUT,
    "actor_rollout_ref.nccl_timeout": RUN,
    "actor_rollout_ref.actor.megatron.": SPEED,
    "actor_rollout_ref.actor.optim.": "the optimizer of the harness's own loop has no such setting",
    "actor_rollout_ref.actor.fsdp_config.": "it is of verl's other engine",
    "actor_rollout_ref.actor.": UNTRAINED,
    "actor_rollout_ref.model.": "the harness's model has no such part",
    "actor_rollout_ref.": ROLLOUT,
    **dict.fromkeys(("algorithm", "critic.", "reward", "custom_reward_function", "global_profiler"), ROLLOUT),
    "data.": DATA,
    "model.": "the harness's model has no such part",
    "engine.": SPEED,
    "optim.": "the optimizer of the harness's own loop has no such setting",
    **dict.fromkeys(("trainer.", "checkpoint.", "ray_", "transfer_queue", "profiler"), RUN),
    **dict.fromkeys(("model_engine", "engine", "optim"), "it names a part of verl's configuration"),
}
_DEFAULTS: Mapping[str, Any] = {
    "sequence_parallel": True,
    "use_distributed_optimizer": True,
    "use_remove_padding": True,
}


class _Sections(NamedTuple):
    """Where a trainer of verl has its settings."""

    engine: str
    model: str
    optimizer: str
    batch: str  # documents of an optimizer step
    lengths: tuple[str, ...]  # whose sum is the longest row


_PPO = _Sections(
    "actor_rollout_ref.actor.megatron.",
    "actor_rollout_ref.model.",
    "actor_rollout_ref.actor.optim.",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    ("data.max_prompt_length", "data.max_response_length"),
)
_SFT = _Sections("engine.", "model.", "optim.", "data.train_batch_size", ("data.max_length",))


def of_values(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the settings of a resolved configuration; None if it is not one of verl."""
    sft = "engine" in values and "optim" in values and "data" in values
    return flat(values) if "actor_rollout_ref" in values or sft else None


def translate(run: TrainingRun) -> Translation:
    """Return what a run is in a matrix. ValueError if it does not train with Megatron."""
    given = run.settings
    sections = _PPO if any(name.startswith("actor_rollout_ref.") for name in given) else _SFT
    if not _with_megatron(given, sections):
        name = "engine" if sections is _SFT else "actor_rollout_ref.actor.strategy"
        raise ValueError(
            f"trains without Megatron: {name} is {given.get(name) or 'not megatron'}, and verl's other engines are not "
            "tested here"
        )
    result = Translation(project="verl", trainer="harness", packing="", documents="adversarial")
    assumed = {f"{sections.engine}{name}": value for name, value in _DEFAULTS.items()}
    missing = {name: value for name, value in assumed.items() if name not in given}
    if missing:
        result.same += [f"{name} {value} (assumed: verl's default)" for name, value in missing.items()]
    settings = Settings({**missing, **given})
    nodes, per_node = settings.size("trainer.nnodes", 1), settings.size("trainer.n_gpus_per_node", 0)
    layout(settings, result, sections.engine, run.ranks or nodes * per_node or None)
    named_model(result, settings.take(f"{sections.model}path"))
    _packing(settings, result, sections)
    _training(settings, result, sections)
    of_megatron(settings, result, f"{sections.engine}override_transformer_config.")
    of_megatron(settings, result, f"{sections.engine}override_ddp_config.")
    finish(settings, result, _REASONS, whole=run.defaults_known)
    return result


def _with_megatron(given: Mapping[str, Any], sections: _Sections) -> bool:
    if sections is _PPO:
        strategy = given.get("actor_rollout_ref.actor.strategy") or given.get("model_engine")
        own = any(name.startswith(sections.engine) for name in given)
        return own if strategy is None else str(strategy) == "megatron"
    parallel = any(name.startswith("engine.") and "model_parallel" in name for name in given)
    return str(given.get("engine", "megatron" if parallel else "")) == "megatron"


def _packing(settings: Settings, result: Translation, sections: _Sections) -> None:
    # The older workers, which main_ppo starts unless told otherwise, read the engine's switch, the newer the model's.
    older = sections is _PPO and settings.take("trainer.use_legacy_worker_impl", "auto") != "disable"
    switches = {
        section: settings.on(f"{section}use_remove_padding", default=True)
        for section in (sections.engine, sections.model)
    }
    section = sections.engine if older else sections.model
    if switches[section]:
        result.packing = "verl"
    else:
        result.not_packed = f"the run does not pack: {section}use_remove_padding is false, so rows are padded documents"
    actor = "actor_rollout_ref.actor." if sections is _PPO else "data."
    if settings.on(f"{actor}use_dynamic_bsz"):
        result.leave_out(f"{actor}use_dynamic_bsz=True", "a micro-batch has the documents that fit into a row")


def _training(settings: Settings, result: Translation, sections: _Sections) -> None:
    keys = result.keys
    precision = str(settings.take(f"{sections.engine}dtype", "bfloat16"))
    keys["dtype"] = "fp32" if precision in ("float32", "fp32") else "bf16"
    keys["micro_batch_size"] = 1
    keys["train.global_batch"] = settings.size(sections.batch, 8)
    keys["train.seq_length"] = sum(settings.size(name, 32) for name in sections.lengths)
    keys["train.lr"] = float(settings.take(f"{sections.optimizer}lr", 1e-3))
    keys["distributed_optimizer"] = "on" if settings.on(f"{sections.engine}use_distributed_optimizer") else "off"
    keys["packing_options.calculate_per_token_loss"] = False
    for own, name in (("weight_decay", "weight_decay"), ("clip_grad", "clip_grad")):
        value = settings.take(f"{sections.optimizer}{own}")
        if value is not None:
            result.args[name] = (str(value),)
    mtp = f"{sections.model}mtp."
    if settings.on(f"{mtp}enable_train"):
        keys["model.mtp.layers"] = 1
        keys["model.mtp.loss_factor"] = float(settings.take(f"{mtp}mtp_loss_scaling_factor", 0.1))
        settings.take(f"{mtp}enable")
