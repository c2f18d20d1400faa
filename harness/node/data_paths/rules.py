"""Passes forbidden combinations to upstream's validators, which must refuse them with a clear message.

| validator | releases |
|---|---|
| megatron.bridge.training.config.ConfigContainer.validate | megatron-bridge 0.4 to 0.6 |
| others | other_validators.py |

The nearest allowed combination must be accepted first; otherwise a refusal would prove nothing. What a clear message
says: harness/core/data_paths/descriptor.py; whether this one does is for the judge.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.data_paths.descriptor import FORBIDDEN_CASES
from harness.core.run.records import Refusal
from harness.node.data_paths.bridge.step import CalledModel, missing, state_of
from harness.node.data_paths.lookup import Unavailable, module_unavailable, none_of
from harness.node.data_paths.unpacked import UnpackedPath

_OFFSETS = torch.tensor([[0, 4, 8]], dtype=torch.int32)  # of one row of two documents


# Packing that parts of Megatron-Bridge and Megatron-LM refuse at run time, each by upstream's own function.
#
# | case | refused by | releases |
# |---|---|---|
# | offsets of two rows | Megatron-Bridge training.gpt_step | 0.4 to 0.6 |
# | virtual tokens | GPTSFTPackedDataset: data.datasets.sft up to 0.5, data.packing.gpt_sft in 0.6 | 0.4 to 0.6 |
# | packing in a step that needs it in the collator | training.vlm_step.forward_step | 0.6 |
# | packing in a collator whose step packs itself | models.qwen_vl.qwen3_vl_step | 0.6 |
# | packing that a step does not have | models.qwen_omni.qwen3_omni_step | 0.6 |
# | packing that a collator does not have | models.nemotron_vl.data.collate_fn, models.qwen_omni.data.collate_fn | 0.6 |
# | packed attention without Transformer Engine | megatron.core.transformer.dot_product_attention | 0.14 to 0.19 |
def rows_of_offsets(forbidden: bool, folder: Path) -> None:
    """Split packed rows over context-parallel ranks: forbidden with the offsets of two rows."""
    split = importlib.import_module("megatron.bridge.training.gpt_step")._partition_packed_batch_for_cp
    by_group = "cp_group" in inspect.signature(split).parameters  # from 0.6
    offsets = _OFFSETS.repeat(2, 1) if forbidden else _OFFSETS
    batch = {"tokens": torch.zeros(1, 8, dtype=torch.int64), "cu_seqlens": offsets}
    split(batch, parallel_state.get_context_parallel_group() if by_group else 1)


def virtual_tokens(forbidden: bool, folder: Path) -> None:
    """Open a packed file for prompt tuning, which puts virtual tokens before each document."""
    from harness.node.data_paths.bridge.offline import Numbers, write_packed_row

    try:
        from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset
    except ModuleNotFoundError:  # up to 0.5
        from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset
    rows = folder / "virtual.npy"
    write_packed_row(rows)
    GPTSFTPackedDataset(
        str(rows),
        Numbers(),
        max_seq_length=64,
        label_key="output",
        prompt_template="{input} {output}",
        truncation_field="input",
        virtual_tokens=4 if forbidden else 0,
    )


def packing_in_vlm_step(forbidden: bool, folder: Path) -> None:
    """A training step that takes rows packed by the collator: forbidden if the collator leaves packing to the step."""
    _reads("megatron.bridge.training.vlm_step", enable_in_batch_packing=True, defer_in_batch_packing_to_step=forbidden)


def packing_in_omni_step(forbidden: bool, folder: Path) -> None:
    """A training step that takes unpacked rows: forbidden with in-batch packing."""
    tokens = torch.ones(2, 4, dtype=torch.int64)
    batch = {"input_ids": tokens, "labels": tokens, "loss_mask": tokens.float(), "position_ids": tokens}
    _reads("megatron.bridge.models.qwen_omni.qwen3_omni_step", batch, enable_in_batch_packing=forbidden)


def packed_for_qwen3_vl_step(forbidden: bool, folder: Path) -> None:
    """Read a batch for a training step that packs itself: forbidden with a packed one."""
    step = importlib.import_module("megatron.bridge.models.qwen_vl.qwen3_vl_step")
    batch = {"tokens": torch.ones(1, 8, dtype=torch.int64)} | ({"cu_seqlens_q": _OFFSETS} if forbidden else {})
    step.get_batch_from_iterator(iter([batch]), is_first_pp_stage=True, is_last_pp_stage=True)


def collated(module: str, name: str) -> Callable[[bool, Path], None]:
    """Pack rows in a collator: allowed for text, forbidden in that of a model that opts out."""

    def validate(forbidden: bool, folder: Path) -> None:
        if forbidden:
            example = {"conversation": [{"role": "user", "content": [{"type": "text", "text": "1"}]}]}
            getattr(importlib.import_module(module), name)([example, example], None, enable_in_batch_packing=True)
            return
        from megatron.bridge.data.collators.sequence import prepare_sequence_batch

        tokens = torch.ones(2, 4, dtype=torch.int64)
        batch: dict[str, Any] = {"tokens": tokens, "position_ids": torch.arange(4).expand(2, 4).clone()}
        prepare_sequence_batch(batch, sequence_length=64, enable_in_batch_packing=True)

    return validate


def local_attention(forbidden: bool, folder: Path) -> None:
    """Megatron's attention without Transformer Engine: forbidden with packed rows."""
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.transformer_config import TransformerConfig

    config = TransformerConfig(
        num_layers=1, hidden_size=8, num_attention_heads=2, masked_softmax_fusion=False, attention_dropout=0.0
    )
    attend = DotProductAttention(config, 1, AttnMaskType.causal, "self")
    states = torch.ones(8, 1, 2, 4)  # [slots, rows, heads, size of a head]
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=_OFFSETS[0], cu_seqlens_kv=_OFFSETS[0])
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
    attend(states, states, states, mask, AttnMaskType.causal, packed_seq_params=params if forbidden else None)


def _reads(module: str, *batches: dict[str, Tensor], **dataset: Any) -> None:
    """Call the forward_step of a module, which is over when it asks for one more batch, or has called the model."""
    step: Any = importlib.import_module(module)
    sizes = SimpleNamespace(
        seq_length=4, sequence_parallel=False, mtp_num_layers=None, virtual_pipeline_model_parallel_size=None
    )
    with suppress(StopIteration):
        step.forward_step(state_of(SimpleNamespace(**dataset), sizes), iter(batches), CalledModel(sizes, None))


# Forbidden combinations that are refused by validators other than ConfigContainer.validate.
#
# | case | validator | releases |
# |---|---|---|
# | missing metadata | GPTSFTPackedDataset: data.datasets.sft up to 0.5, data.packing.gpt_sft in 0.6 | 0.4 to 0.6 |
# | cp and seq_length | megatron.training.arguments.validate_args | megatron-core wheels 0.17 to 0.19 |
# | iterators of tp ranks above 0 | megatron.core.datasets.data_schedule.wrap_data_iterator | main and dev of 2026-08 |
def pad_cu_seqlens(forbidden: bool, folder: Path) -> None:
    """Open a packed file with pad_cu_seqlens: forbidden without the file's metadata."""
    from harness.node.data_paths.bridge.offline import Numbers, write_packed_row

    try:
        from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset
    except ModuleNotFoundError:  # up to 0.5
        from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset
    rows, metadata = folder / "rules.npy", folder / "rules_metadata.json"
    write_packed_row(rows)
    counts = {"max_samples_per_bin": 1, "dataset_max_seqlen": 4, "min_packed_seqlen": 4}
    metadata.write_text(json.dumps([counts]), encoding="utf-8")
    GPTSFTPackedDataset(
        str(rows),
        Numbers(),
        max_seq_length=64,
        label_key="output",
        prompt_template="{input} {output}",
        truncation_field="input",
        pad_to_max_length=True,
        pad_cu_seqlens=True,
        pack_metadata_file_path=None if forbidden else str(metadata),
    )


def megatron_arguments(forbidden: bool, folder: Path) -> None:
    """Validate Megatron-LM's command line for cp 2: forbidden with a sequence length that is not a multiple of 4."""
    from megatron.training import arguments

    length = "66" if forbidden else "64"
    options = {
        "--num-layers": "2",
        "--hidden-size": "64",
        "--num-attention-heads": "8",
        "--seq-length": length,
        "--max-position-embeddings": length,
        "--micro-batch-size": "1",
        "--global-batch-size": "2",
        "--train-iters": "2",
        "--lr": "0.001",
        "--context-parallel-size": "2",
        "--transformer-impl": "local",
        "--tokenizer-type": "NullTokenizer",
        "--vocab-size": "128",
    }
    argv = [word for pair in options.items() for word in pair]
    with _command_line(argv, ranks=2), _architecture(arguments):
        arguments.validate_args(arguments.parse_args())


def iterator_on_every_rank(forbidden: bool, folder: Path) -> None:
    """Schedule one document: forbidden on tp rank 1, which reads it too, as ranks of NeMo-RL do."""
    from megatron.core.datasets import data_schedule
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "pp", "dp", "dp_cp"])
    if forbidden:
        groups.tp = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    names = "tokens", "labels", "loss_mask", "position_ids"
    document = {name: torch.ones(4, dtype=torch.int64) for name in names} | {"loss_mask": torch.ones(4)}
    document |= {name: torch.tensor([4]) for name in ("original_seq_len", "padded_seq_len")}
    config = SimpleNamespace(
        sequence_packing_scheduler="dp_balanced",
        max_seqlen_per_dp_cp_rank=8,
        virtual_pipeline_model_parallel_size=None,
        mtp_num_layers=None,
        pipeline_model_parallel_layout=None,
    )
    data_schedule.wrap_data_iterator(iter([document]), config, 1, groups)


@contextmanager
def _command_line(argv: list[str], ranks: int) -> Iterator[None]:
    """Set the command line, and the environment of rank 0 of `ranks`."""
    kept = list(sys.argv), dict(os.environ)
    sys.argv[1:] = argv
    os.environ.update(RANK="0", WORLD_SIZE=str(ranks))
    try:
        yield
    finally:
        sys.argv[:] = kept[0]
        os.environ.clear()
        os.environ.update(kept[1])


@contextmanager
def _architecture(arguments: Any) -> Iterator[None]:
    """Without a GPU, let validate_args, which queries the architecture, see that of Blackwell."""
    kept = arguments.get_device_arch_version
    if not torch.cuda.is_available():
        arguments.get_device_arch_version = lambda: 10
    try:
        yield
    finally:
        arguments.get_device_arch_version = kept


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
    return OtherCase(collated(module, name), (module,))


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
        pad_cu_seqlens,
        ("megatron.bridge.data.packing.gpt_sft", "megatron.bridge.data.datasets.sft"),
    ),
    "in-batch-opt-out": _collator(f"{_BRIDGE_MODELS}.qwen_omni.data.collate_fn", "qwen3_omni_collate_fn"),
    "in-batch-nemotron-vl": _collator(
        f"{_BRIDGE_MODELS}.nemotron_vl.data.collate_fn", "nemotron_nano_v2_vl_collate_fn"
    ),
    "in-batch-qwen3-omni-step": OtherCase(packing_in_omni_step, (f"{_BRIDGE_MODELS}.qwen_omni.qwen3_omni_step",)),
    "collated-qwen3-vl-step": OtherCase(packed_for_qwen3_vl_step, (f"{_BRIDGE_MODELS}.qwen_vl.qwen3_vl_step",)),
    "deferred-vlm-step": OtherCase(packing_in_vlm_step, ("megatron.bridge.training.vlm_step",)),
    "offsets-of-two-rows": OtherCase(rows_of_offsets, ("megatron.bridge.training.gpt_step",)),
    "offline-virtual-tokens": OtherCase(
        virtual_tokens, ("megatron.bridge.data.packing.gpt_sft", "megatron.bridge.data.datasets.sft")
    ),
    "offline-graphs-free-rows": Case(_graphs),
    "offline-graphs-free-offsets": Case(_graphs_of_full_rows),
    "megatron-local-attention": OtherCase(local_attention, ("megatron.core.transformer.dot_product_attention",)),
    "megatron-cp-seq-length": OtherCase(megatron_arguments, ("megatron.training.arguments",)),
    "megatron-iterator-on-every-rank": OtherCase(iterator_on_every_rank, ("megatron.core.datasets.data_schedule",)),
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
