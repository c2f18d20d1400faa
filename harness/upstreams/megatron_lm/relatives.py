"""Training runs of frameworks whose flags are Megatron-LM's with others beside them: slime and ms-swift.

Their own packing is not here: cells test the layout with the harness's own packer, in the harness's own loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.matrix.intake.fields import named_model
from harness.matrix.intake.run import Settings, TrainingRun, Translation
from harness.upstreams.megatron_lm.translation import translate

SLIME = ("train.py", "train_async.py")
SWIFT = ("megatron sft", "megatron pt", "megatron rlhf")
# What slime sets whatever the command says (slime.backends.megatron_utils.arguments).
_BY_SLIME: Mapping[str, Any] = {"bf16": True, "use_distributed_optimizer": True}
# What ms-swift takes from the model's configuration on Hugging Face, and its own defaults.
_BY_SWIFT: Mapping[str, Any] = {
    "bf16": True,
    "swiglu": True,
    "disable_bias_linear": True,
    "normalization": "RMSNorm",
    "position_embedding_type": "rope",
    "hidden_dropout": 0,
    "attention_dropout": 0,
    "use_distributed_optimizer": True,
    "untie_embeddings_and_output_weights": True,
}


def translate_slime(run: TrainingRun) -> Translation:
    """Return what a run of slime is in a matrix, as far as its flags are Megatron's.

    Another framework's train.py, which has none of slime's flags, is read as Megatron-LM's.
    """
    own = Settings(run.settings)
    if not any(name.startswith(("rollout_", "actor_num_", "hf_checkpoint", "prompt_data")) for name in run.settings):
        return translate(run)
    if not {"num_layers", "num_attention_heads", "hidden_size"} & {*run.settings}:
        raise ValueError(
            "says no size of the model, such as --num-layers: does each line of the command but the last end with a "
            "backslash, and are the files that it sources in their places?"
        )
    ranks = own.size("actor_num_nodes", 1) * own.size("actor_num_gpus_per_node", 0)
    packs = str(own.take("qkv_format", "thd")) == "thd"
    flags = {**_BY_SLIME, **dict(own.left())}
    if "fp16" in flags:
        del flags["bf16"]
    result = _in_own_loop(translate(replace(run, settings=flags, ranks=ranks or run.ranks)), "slime")
    result.same += [f"--{name.replace('_', '-')} (slime sets it)" for name in _BY_SLIME if name not in run.settings]
    if not packs:
        result.packing, result.not_packed = "", "the run does not pack: --qkv-format is not thd"
    return result


def translate_swift(run: TrainingRun) -> Translation:
    """Return what a run of `megatron sft` is in a matrix, as far as its flags are Megatron's."""
    own = Settings({**_BY_SWIFT, **run.settings})
    packs, free = own.on("packing"), own.on("padding_free", default=True)
    model, length = own.take("model"), own.size("max_length", 64)
    result = _in_own_loop(translate(replace(run, settings=dict(own.left()))), "ms-swift")
    if "num_layers" not in run.settings:
        result.left_out = [entry for entry in result.left_out if entry.setting not in _BY_SWIFT]
        named_model(result, model)
    result.keys["train.seq_length"] = length
    if not packs and not free:
        result.packing, result.not_packed = "", "the run does not pack: --packing and --padding_free are false"
    return result


def _in_own_loop(result: Translation, project: str) -> Translation:
    """Return the translation for the harness's own loop and packer."""
    result.trainer, result.packing, result.not_packed, result.documents = "harness", "reference", "", "adversarial"
    result.leave_out(
        f"{project}'s packing",
        f"{project}'s own packing is not tested here: cells have the harness's packer (packing: reference); a plug-in "
        "can add a data path",
    )
    if not result.keys["packing_options.calculate_per_token_loss"]:
        result.keys["packing_options.calculate_per_token_loss"] = True
        result.leave_out(
            "no --calculate-per-token-loss", f"{project} divides losses itself, and that is not tested here"
        )
    recomputes = result.args.pop("recompute_granularity", ())
    if recomputes and recomputes[0] in ("full", "selective"):
        result.keys["recompute"] = recomputes[0]
    return result
