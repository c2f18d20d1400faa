"""A cell as the ConfigContainer of Megatron-Bridge. What is not named here has upstream's default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.cell.axis_values import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.cell.reports import log_interval
from harness.core.cell.upstream_config import constructor_arguments, optimizer_fields, weight_decay
from harness.core.run.run_dir import AttemptDir
from harness.node.data_paths.bridge.offline import tokenizer_config
from harness.node.device.placement import Device
from harness.node.probe.model.bridge.adapters import upstream_peft
from harness.node.probe.model.distributed_optimizer import ddp_fields
from harness.node.probe.model.gpt import upstream_fields
from harness.node.trainers.bridge.fields import set_fields
from harness.node.trainers.bridge.files import data_config

# What the probe sets for its own loop, but upstream's loop does not need or sets itself.
_OF_PROBE = (
    "init_method",
    "output_layer_init_method",
    "embedding_init_method",
    "variable_seq_lengths",  # train_step passes the length of the step's rows to the schedule
)


def container(config: CellConfig, folder: Path, device: Device) -> Any:
    """The configuration; `folder`: with the files of `write_files`. FieldError for an unknown field."""
    made = _container(config, folder, device)
    set_fields(made, config.args)
    return made


def _container(config: CellConfig, folder: Path, device: Device) -> Any:
    from megatron.bridge.training import config as upstream

    decay = weight_decay(config)
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
        scheduler=upstream.SchedulerConfig(
            lr_decay_style="constant",
            lr_warmup_iters=0,
            start_weight_decay=decay,
            end_weight_decay=decay,
            weight_decay_incr_style="constant",
        ),
        ddp=upstream.DistributedDataParallelConfig(**ddp_fields(config)),
        dist=upstream.DistributedInitConfig(distributed_backend=device.backend),
        rng=upstream.RNGConfig(seed=config.train.seed),
        checkpoint=upstream.CheckpointConfig(**_checkpoint(config, AttemptDir(folder.parent))),
        logger=upstream.LoggerConfig(log_interval=log_interval(config)),
        peft=upstream_peft(config.model.peft) if config.model.peft else None,
    )


def _model(config: CellConfig) -> Any:
    """Layers of Transformer Engine, upstream's default, for its kinds of attention; else the local ones (layers.py)."""
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
    return pretrained | ({"load": str(attempt.checkpoint), "ckpt_step": config.begins} if config.begins else {})


def _optimizer(config: CellConfig) -> dict[str, Any]:
    """As the harness's own loop: Adam with upstream's defaults, constant learning rate; clipping only if asked for."""
    fields = upstream_fields(config)
    return {
        "optimizer": "adam",
        "min_lr": config.train.lr,
        "bf16": fields["bf16"],
        "params_dtype": fields["params_dtype"],
        "use_distributed_optimizer": config.distributed_optimizer != "off",
        "overlap_param_gather": config.distributed_optimizer == "overlap",
        **optimizer_fields(config),
    }
