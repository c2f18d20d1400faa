"""A cell as the ConfigContainer of Megatron-Bridge. What is not named here has upstream's default."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from harness.core.cell.arguments import Argument, Arguments
from harness.core.cell.axis_values import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.cell.reports import log_interval
from harness.core.cell.schedule import changed_keys
from harness.core.cell.upstream_config import constructor_arguments, optimizer_fields, weight_decay
from harness.core.run.run_dir import AttemptDir
from harness.features.adapters.node_adapters import upstream_peft
from harness.features.optimizer.node_distributed import ddp_fields
from harness.probe.model.gpt import upstream_fields
from harness.runtime.device.placement import Device
from harness.upstreams.megatron_bridge.node_files import data_config
from harness.upstreams.megatron_bridge.node_offline import tokenizer_config

_CONSTANTS = {"true": True, "false": False, "null": None}
_INTEGER = re.compile(r"[+-]?\d+")
_REAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


# Fields of Megatron-Bridge's ConfigContainer that a cell sets by their dotted names, e.g. "ddp.overlap_grad_reduce".
#
# Upstream's own overrides (training.utils.omegaconf_utils) need the package hydra-core, and skip unknown names.
class FieldError(ValueError):
    """A name that no field has, or a value that a field cannot have."""


def set_fields(container: Any, args: Arguments) -> None:
    """Set the fields among the arguments. FieldError for one that the container does not have."""
    for argument in args.given:
        if argument.is_field:
            _set(container, argument)


def _set(container: Any, argument: Argument) -> None:
    *path, name = argument.name.split(".")
    owner = container
    for part in path:
        owner = getattr(owner, part, None)
    # Asked first, since setattr on a dataclass accepts any name, and a misspelt one would silently do nothing.
    if not _is_configuration(owner) or name not in _names_of(owner):
        names = list(_names(container, ""))
        near = difflib.get_close_matches(argument.name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise FieldError(f"{argument.name} is not a field of this release's ConfigContainer{hint}")
    setattr(owner, name, _value(argument, getattr(owner, name)))


def _names(owner: Any, prefix: str) -> Iterator[str]:
    """Yield the dotted names of all fields."""
    for name in _names_of(owner):
        value = getattr(owner, name, None)
        yield from _names(value, f"{prefix}{name}.") if _is_configuration(value) else (f"{prefix}{name}",)


def _names_of(owner: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(owner) if not field.name.startswith("_")]


def _is_configuration(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _value(argument: Argument, before: Any) -> Any:
    """Return the value, of the type of the field's default, unless that is None.

    FieldError if it is of another type.
    """
    words = argument.words
    value = _read(words[0]) if len(words) == 1 else [_read(word) for word in words]
    if value is None or before is None:
        return value
    if isinstance(before, Enum):
        if words[0] in type(before).__members__:
            return type(before)[words[0]]
        raise FieldError(f"{argument.flag[0]}: allowed: {', '.join(type(before).__members__)}")
    if isinstance(before, str) and len(words) == 1:
        return words[0]
    if isinstance(before, (list, tuple)):
        return type(before)(value if isinstance(value, list) else [value])
    # bool is an int, and `true` for a number is a mistake.
    if isinstance(before, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not type(before):
        raise FieldError(f"{argument.flag[0]}: must be of type {type(before).__name__}, like its default {before!r}")
    return value


def _read(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _INTEGER.fullmatch(word):
        return int(word)
    return float(word) if _REAL.fullmatch(word) else word


# What the probe sets for its own loop, but upstream's loop does not need or sets itself.
_OF_PROBE = (
    "init_method",
    "output_layer_init_method",
    "embedding_init_method",
    "variable_seq_lengths",  # train_step passes the length of the step's rows to the schedule
)


def container(config: CellConfig, folder: Path, device: Device) -> Any:
    """Return the configuration; `folder`: with the files of `write_files`. FieldError for an unknown field."""
    configuration = _container(config, folder, device)
    set_fields(configuration, config.args)
    return configuration


def _container(config: CellConfig, folder: Path, device: Device) -> Any:
    from megatron.bridge.training import config as upstream

    return upstream.ConfigContainer(
        model=_model(config),
        dataset=data_config(folder, config),
        tokenizer=tokenizer_config(folder),
        train=upstream.TrainingConfig(
            train_iters=config.train.steps,
            global_batch_size=len(config.rows(0)),
            micro_batch_size=config.micro_batch_size,
        ),
        validation=upstream.ValidationConfig(
            eval_iters=1 if config.train.eval_interval else 0, eval_interval=config.train.eval_interval or None
        ),
        optimizer=upstream.OptimizerConfig(**_optimizer(config)),
        scheduler=upstream.SchedulerConfig(**_schedule(config)),
        ddp=upstream.DistributedDataParallelConfig(**ddp_fields(config)),
        dist=upstream.DistributedInitConfig(
            distributed_backend=device.backend, use_tp_pp_dp_mapping=config.layout.pp_before_dp
        ),
        rng=upstream.RNGConfig(seed=config.train.seed),
        checkpoint=upstream.CheckpointConfig(**_checkpoint(config, AttemptDir(folder.parent))),
        logger=upstream.LoggerConfig(log_interval=log_interval(config)),
        peft=upstream_peft(config.model.peft) if config.model.peft else None,
    )


def _model(config: CellConfig) -> Any:
    """Return Transformer Engine's layers, upstream's default, for its kinds of attention.

    Else the local ones.
    """
    from megatron.bridge.models.gpt_provider import GPTModelProvider, local_layer_spec

    fields = {name: value for name, value in upstream_fields(config).items() if name not in _OF_PROBE}
    if config.attention not in TE_KINDS:
        fields["transformer_layer_spec"] = local_layer_spec
    return GPTModelProvider(
        **fields,
        seq_length=config.train.seq_length,
        **constructor_arguments(config.model),
        make_vocab_size_divisible_by=1,  # upstream's FLOPs count a padded vocabulary, though the model has none
        cross_entropy_loss_fusion=False,
    )


def _checkpoint(config: CellConfig, attempt: AttemptDir) -> dict[str, Any]:
    pretrained = {"pretrained_checkpoint": str(attempt.pretrained)} if config.model.peft else {}
    if config.resume:
        return pretrained | {"save": str(attempt.checkpoint), "save_interval": config.train.save_step}
    return pretrained | ({"load": str(attempt.checkpoint), "ckpt_step": config.start_step} if config.start_step else {})


def _schedule(config: CellConfig) -> dict[str, Any]:
    decay = weight_decay(config)  # upstream's scheduler overrides the optimizer's own with its two
    defaults = {"lr_decay_style": config.train.lr_decay_style, "start_weight_decay": decay, "end_weight_decay": decay}
    given = changed_keys(config.train)
    given.pop("min_lr", None)  # of the optimizer's configuration
    return {**defaults, "weight_decay_incr_style": "constant", "lr_warmup_iters": 0, **given}


def _optimizer(config: CellConfig) -> dict[str, Any]:
    """Set the optimizer as the harness's own loop does: Adam with upstream's defaults, clipping only if asked for."""
    fields = upstream_fields(config)
    return {
        "optimizer": "adam",
        "bf16": fields["bf16"],
        "params_dtype": fields["params_dtype"],
        "use_distributed_optimizer": config.distributed_optimizer != "off",
        "overlap_param_gather": config.distributed_optimizer == "overlap",
        **optimizer_fields(config),
    }
