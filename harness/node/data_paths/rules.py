"""Passes forbidden combinations to upstream's validators, which must refuse them with a clear message.

| validator | releases |
|---|---|
| megatron.bridge.training.config.ConfigContainer.validate | megatron-bridge 0.4 to 0.6 |
| others | other_validators.py |

The nearest allowed combination must be accepted first; otherwise a refusal would prove nothing. What a clear message
says: harness/core/data_paths/descriptor.py; whether this one does is for the judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.data_paths.descriptor import FORBIDDEN_CASES
from harness.core.run.records import Refusal
from harness.node.data_paths import opt_outs, other_validators
from harness.node.data_paths.bridge.step import missing
from harness.node.data_paths.lookup import Unavailable, module_unavailable, none_of
from harness.node.data_paths.unpacked import UnpackedPath


@dataclass(frozen=True)
class Case:
    """`change` makes an allowed configuration forbidden."""

    change: Callable[[Any], None]
    cp: int = 1
    in_batch: bool = False  # the allowed configuration packs in batch, not offline

    def validate(self, forbidden: bool, folder: Path) -> None:
        """Validate the forbidden combination, or the nearest allowed one; a refusal raises."""
        config = _config(self)
        if forbidden:
            self.change(config)
        config.validate()


@dataclass(frozen=True)
class OtherCase:
    """A case of another validator; `validate` may write into the folder."""

    validate: Callable[[bool, Path], None]
    modules: tuple[str, ...]  # where the validator may be, depending on the release

    @property
    def project(self) -> str:
        """The top package of the validator's project; megatron.training comes with megatron.core."""
        return "megatron.bridge" if self.modules[0].startswith("megatron.bridge.") else "megatron.core"


def _micro_batch_2(config: Any) -> None:
    config.train.micro_batch_size = 2


def _in_batch_micro_batch_1(config: Any) -> None:
    config.train.micro_batch_size = 1


def _odd_length(config: Any) -> None:
    config.model.seq_length = config.dataset.seq_length = 66


def _mean_loss(config: Any) -> None:
    config.model.calculate_per_token_loss = False


def _average(config: Any) -> None:
    config.ddp.average_in_collective = True


def _fixed_entries(config: Any) -> None:
    _specs(config).pad_cu_seqlens = True


def _set_in_batch(config: Any) -> None:
    """Set the switch that validate reads: pack_sequences_in_batch up to 0.5, enable_in_batch_packing from 0.6."""
    name = "enable_in_batch_packing" if hasattr(config.dataset, "enable_offline_packing") else "pack_sequences_in_batch"
    setattr(config.dataset, name, True)


def _graphs(config: Any) -> None:
    config.model.cuda_graph_impl = "transformer_engine"


def _graphs_of_full_rows(config: Any) -> None:
    _graphs(config)
    config.dataset.dataset_kwargs = {"pad_to_max_length": True}


def _collator(module: str, name: str) -> OtherCase:
    return OtherCase(opt_outs.collated(module, name), (module,))


_BRIDGE_MODELS = "megatron.bridge.models"
CASES: dict[str, Case | OtherCase] = {
    "offline-micro-batch-2": Case(_micro_batch_2),
    "in-batch-micro-batch-1": Case(_in_batch_micro_batch_1, in_batch=True),
    "cp-seq-length": Case(_odd_length, cp=2),
    "cp-mean-loss": Case(_mean_loss, cp=2),
    "cp-average-in-collective": Case(_average, cp=2),
    "pad-cu-seqlens-free-rows": Case(_fixed_entries),
    "offline-and-in-batch": Case(_set_in_batch),
    "pad-cu-seqlens-no-metadata": OtherCase(
        other_validators.pad_cu_seqlens,
        ("megatron.bridge.data.packing.gpt_sft", "megatron.bridge.data.datasets.sft"),
    ),
    "in-batch-opt-out": _collator(f"{_BRIDGE_MODELS}.qwen_omni.data.collate_fn", "qwen3_omni_collate_fn"),
    "in-batch-nemotron-vl": _collator(
        f"{_BRIDGE_MODELS}.nemotron_vl.data.collate_fn", "nemotron_nano_v2_vl_collate_fn"
    ),
    "in-batch-qwen3-omni-step": OtherCase(
        opt_outs.packing_in_omni_step, (f"{_BRIDGE_MODELS}.qwen_omni.qwen3_omni_step",)
    ),
    "collated-qwen3-vl-step": OtherCase(
        opt_outs.packed_for_qwen3_vl_step, (f"{_BRIDGE_MODELS}.qwen_vl.qwen3_vl_step",)
    ),
    "deferred-vlm-step": OtherCase(opt_outs.packing_in_vlm_step, ("megatron.bridge.training.vlm_step",)),
    "offsets-of-two-rows": OtherCase(opt_outs.rows_of_offsets, ("megatron.bridge.training.gpt_step",)),
    "offline-virtual-tokens": OtherCase(
        opt_outs.virtual_tokens, ("megatron.bridge.data.packing.gpt_sft", "megatron.bridge.data.datasets.sft")
    ),
    "offline-graphs-free-rows": Case(_graphs),
    "offline-graphs-free-offsets": Case(_graphs_of_full_rows),
    "megatron-local-attention": OtherCase(
        opt_outs.local_attention, ("megatron.core.transformer.dot_product_attention",)
    ),
    "megatron-cp-seq-length": OtherCase(other_validators.megatron_arguments, ("megatron.training.arguments",)),
    "megatron-iterator-on-every-rank": OtherCase(
        other_validators.iterator_on_every_rank, ("megatron.core.datasets.data_schedule",)
    ),
}


class RulesPath(UnpackedPath):
    """Calls the validators in the metadata leg; trains like the control."""

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        """Why the validator of the cell's case cannot be called: a case needs only the module of its validator."""
        case = CASES[config.forbidden]
        if isinstance(case, Case):
            return missing("training.config", "models.gpt_provider")
        reasons = [module_unavailable(module, case.project) for module in case.modules]
        if not all(reasons):
            return None
        found = none_of(*(reason for reason in reasons if reason))
        validator = FORBIDDEN_CASES[config.forbidden].validator
        return replace(found, reason=f"{validator} cannot be imported: {found.reason}")

    def refusal(self) -> Refusal:
        """How upstream's validator reacts to the allowed combination and to the forbidden one."""
        name, folder = self.context.config.forbidden, self.context.folder
        case, declared = CASES[name], FORBIDDEN_CASES[name]
        allowed, _ = _refusal(case, False, folder)
        message, kind = _refusal(case, True, folder)
        return Refusal(
            allowed_refused=allowed, message=message, type=kind, wanted=declared.pattern, validator=declared.validator
        )


def _refusal(case: Case | OtherCase, forbidden: bool, folder: Path) -> tuple[str | None, str | None]:
    """(message, type) of the refusal; (None, None) when the configuration is accepted."""
    try:
        case.validate(forbidden, folder)
    except (Exception, SystemExit) as error:  # upstream refuses with AssertionError, ValueError and others
        return str(error)[:1000], type(error).__name__
    return None, None


def _config(case: Case) -> Any:
    """A small fine-tuning configuration with packing that upstream allows."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.training import config as upstream

    model = GPTModelProvider(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=8,
        seq_length=64,
        vocab_size=128,
        context_parallel_size=case.cp,
        calculate_per_token_loss=True,
    )
    config = upstream.ConfigContainer(
        train=upstream.TrainingConfig(micro_batch_size=2 if case.in_batch else 1, global_batch_size=8, train_iters=2),
        model=model,
        optimizer=upstream.OptimizerConfig(lr=1e-3, optimizer="adam"),
        scheduler=upstream.SchedulerConfig(lr_decay_style="constant", lr_decay_iters=2, lr_warmup_iters=0),
        dataset=_dataset(offline=not case.in_batch),
        logger=upstream.LoggerConfig(),
        tokenizer=upstream.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=128),
        checkpoint=upstream.CheckpointConfig(),
        ddp=upstream.DistributedDataParallelConfig(average_in_collective=False),
    )
    config.data_parallel_size = 1  # else upstream divides this process's world size by the case's layout
    if case.in_batch:
        _set_in_batch(config)
    return config


def _dataset(offline: bool) -> Any:
    from harness.node.data_paths.bridge.offline import _specs_class

    specs = _specs_class()(packed_sequence_size=64) if offline else None
    given: dict[str, Any] = {"dataset_root": ".", "seq_length": 64}
    try:
        from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetConfig
    except ModuleNotFoundError:
        from megatron.bridge.training.config import FinetuningDatasetConfig

        return FinetuningDatasetConfig(packed_sequence_specs=specs, **given)
    return GPTSFTDatasetConfig(enable_offline_packing=offline, offline_packing_specs=specs, **given)


def _specs(config: Any) -> Any:
    dataset = config.dataset
    return getattr(dataset, "offline_packing_specs", None) or dataset.packed_sequence_specs
