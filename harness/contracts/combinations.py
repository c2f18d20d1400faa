"""Combinations that upstream must refuse, each passed to the function of upstream that refuses it."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor

from harness.core.outcomes import Missing
from harness.core.upstream import distribution_of
from harness.upstreams.megatron_bridge.node_step import CalledModel, state_of
from harness.upstreams.node_lookup import Unavailable, is_installed, module_unavailable, none_of, not_in_release

_OFFSETS = torch.tensor([[0, 4, 8]], dtype=torch.int32)  # of one row of two documents


@dataclass(frozen=True, kw_only=True)
class Combination:
    """What upstream must refuse, with a message that names the violated rule."""

    attempt: Callable[[bool, Path], None]  # the forbidden combination, or the nearest allowed one; may write files
    says: str  # what such a message matches, in any case
    needs: tuple[str, ...] = ("megatron.bridge.training.config:ConfigContainer",)  # one of them, by release
    validator: str = "Megatron-Bridge ConfigContainer.validate"
    since: tuple[int, int] = (0, 0)  # the release of the validator's project from which on it is there

    @property
    def project(self) -> str:
        """The top package of the validator's project; megatron.training comes with megatron.core."""
        return "megatron.bridge" if self.needs[0].startswith("megatron.bridge.") else "megatron.core"

    def unavailable(self) -> Unavailable:
        """Why upstream's validator cannot be called.

        A Rejection if the stack does not have the project, or an older release. What is absent in a newer checkout may
        have been renamed.
        """
        root = self.project
        if not is_installed(root):
            return not_in_release(f"{distribution_of(root)} is not installed in this stack")
        reasons = []
        for place in self.needs:
            module, _, name = place.partition(":")
            reasons.append(module_unavailable(module, root, name))
        if not all(reasons):
            return None
        found = none_of(*(reason for reason in reasons if reason))
        if isinstance(found, Missing) and found.rejection is not None and release_of(root) < self.since:
            found = found.rejection
        return replace(found, reason=f"no {self.validator}: {found.reason}")

    def refusal(self, forbidden: bool, folder: Path) -> str | None:
        """Upstream's message; None when it accepts the combination."""
        try:
            self.attempt(forbidden, folder)
        except (Exception, SystemExit) as error:  # upstream refuses with AssertionError, ValueError and others
            return f"{type(error).__name__}: {error}"[:1000]
        return None


def release_of(project: str) -> tuple[int, ...]:
    """The first two numbers of a project's version, e.g. (0, 6)."""
    return tuple(int(part) for part in importlib.import_module(project).__version__.split(".")[:2])


def _offsets_of_two_rows(forbidden: bool, folder: Path) -> None:
    """Split packed rows over context-parallel ranks: forbidden with the offsets of two rows."""
    split = importlib.import_module("megatron.bridge.training.gpt_step")._partition_packed_batch_for_cp
    by_group = "cp_group" in inspect.signature(split).parameters  # from 0.6
    offsets = _OFFSETS.repeat(2, 1) if forbidden else _OFFSETS
    batch = {"tokens": torch.zeros(1, 8, dtype=torch.int64), "cu_seqlens": offsets}
    split(batch, parallel_state.get_context_parallel_group() if by_group else 1)


def _virtual_tokens(forbidden: bool, folder: Path) -> None:
    """Open a packed file for prompt tuning, which puts virtual tokens before each document."""
    _open_packed_file(folder, virtual_tokens=4 if forbidden else 0)


def _fixed_offsets_without_metadata(forbidden: bool, folder: Path) -> None:
    """Open a packed file with pad_cu_seqlens: forbidden without the file's metadata."""
    metadata = folder / "metadata.json"
    counts = {"max_samples_per_bin": 1, "dataset_max_seqlen": 4, "min_packed_seqlen": 4}
    metadata.write_text(json.dumps([counts]), encoding="utf-8")
    file = None if forbidden else str(metadata)
    _open_packed_file(folder, pad_to_max_length=True, pad_cu_seqlens=True, pack_metadata_file_path=file)


def _open_packed_file(folder: Path, **options: Any) -> None:
    from harness.upstreams.megatron_bridge.node_offline import Numbers, write_packed_row

    try:
        from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset
    except ModuleNotFoundError:  # up to 0.5
        from megatron.bridge.data.datasets.sft import GPTSFTPackedDataset
    rows = folder / "rows.npy"
    write_packed_row(rows)
    GPTSFTPackedDataset(
        str(rows),
        Numbers(),
        max_seq_length=64,
        label_key="output",
        prompt_template="{input} {output}",
        truncation_field="input",
        **options,
    )


def _deferred_in_vlm_step(forbidden: bool, folder: Path) -> None:
    """A training step that takes rows packed by the collator: forbidden if the collator leaves packing to the step."""
    _reads("megatron.bridge.training.vlm_step", enable_in_batch_packing=True, defer_in_batch_packing_to_step=forbidden)


def _packed_for_omni_step(forbidden: bool, folder: Path) -> None:
    """A training step that takes unpacked rows: forbidden with in-batch packing."""
    tokens = torch.ones(2, 4, dtype=torch.int64)
    batch = {"input_ids": tokens, "labels": tokens, "loss_mask": tokens.float(), "position_ids": tokens}
    _reads("megatron.bridge.models.qwen_omni.qwen3_omni_step", batch, enable_in_batch_packing=forbidden)


def _packed_for_qwen3_vl_step(forbidden: bool, folder: Path) -> None:
    """Read a batch for a training step that packs itself: forbidden with a packed one."""
    step = importlib.import_module("megatron.bridge.models.qwen_vl.qwen3_vl_step")
    batch = {"tokens": torch.ones(1, 8, dtype=torch.int64)} | ({"cu_seqlens_q": _OFFSETS} if forbidden else {})
    step.get_batch_from_iterator(iter([batch]), is_first_pp_stage=True, is_last_pp_stage=True)


def _collated(module: str, name: str) -> Callable[[bool, Path], None]:
    """Pack rows in a collator: allowed for text, forbidden in that of a model that opts out."""

    def attempt(forbidden: bool, folder: Path) -> None:
        if forbidden:
            example = {"conversation": [{"role": "user", "content": [{"type": "text", "text": "1"}]}]}
            getattr(importlib.import_module(module), name)([example, example], None, enable_in_batch_packing=True)
            return
        from megatron.bridge.data.collators.sequence import prepare_sequence_batch

        tokens = torch.ones(2, 4, dtype=torch.int64)
        batch: dict[str, Any] = {"tokens": tokens, "position_ids": torch.arange(4).expand(2, 4).clone()}
        prepare_sequence_batch(batch, sequence_length=64, enable_in_batch_packing=True)

    return attempt


def _packed_for_local_attention(forbidden: bool, folder: Path) -> None:
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


def _odd_length_of_megatron(forbidden: bool, folder: Path) -> None:
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


def _iterator_on_every_rank(forbidden: bool, folder: Path) -> None:
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


def _validated(change: Callable[[Any], None], *, cp: int = 1, in_batch: bool = False) -> Callable[[bool, Path], None]:
    """Validate a configuration that packs offline or in batch: allowed as it is, forbidden after `change`."""

    def attempt(forbidden: bool, folder: Path) -> None:
        config = _fine_tuning(cp, in_batch)
        if forbidden:
            change(config)
        config.validate()

    return attempt


def _fine_tuning(cp: int, in_batch: bool) -> Any:
    """A small configuration of Megatron-Bridge with packing that it allows."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.training import config as upstream

    model = GPTModelProvider(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=8,
        seq_length=64,
        vocab_size=128,
        context_parallel_size=cp,
        calculate_per_token_loss=True,
    )
    config = upstream.ConfigContainer(
        train=upstream.TrainingConfig(micro_batch_size=2 if in_batch else 1, global_batch_size=8, train_iters=2),
        model=model,
        optimizer=upstream.OptimizerConfig(lr=1e-3, optimizer="adam"),
        scheduler=upstream.SchedulerConfig(lr_decay_style="constant", lr_decay_iters=2, lr_warmup_iters=0),
        dataset=_dataset(offline=not in_batch),
        logger=upstream.LoggerConfig(),
        tokenizer=upstream.TokenizerConfig(tokenizer_type="NullTokenizer", vocab_size=128),
        checkpoint=upstream.CheckpointConfig(),
        ddp=upstream.DistributedDataParallelConfig(average_in_collective=False),
    )
    config.data_parallel_size = 1  # else upstream divides this process's world size by the layout
    if in_batch:
        _pack_in_batch(config)
    return config


def _dataset(offline: bool) -> Any:
    from harness.upstreams.megatron_bridge.node_offline import specs_class

    specs = specs_class()(packed_sequence_size=64) if offline else None
    given: dict[str, Any] = {"dataset_root": ".", "seq_length": 64}
    try:
        from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetConfig
    except ModuleNotFoundError:  # up to 0.5
        from megatron.bridge.training.config import FinetuningDatasetConfig

        return FinetuningDatasetConfig(packed_sequence_specs=specs, **given)
    return GPTSFTDatasetConfig(enable_offline_packing=offline, offline_packing_specs=specs, **given)


def _two_rows(config: Any) -> None:
    config.train.micro_batch_size = 2


def _one_row(config: Any) -> None:
    config.train.micro_batch_size = 1


def _odd_length(config: Any) -> None:
    config.model.seq_length = config.dataset.seq_length = 66


def _mean_loss(config: Any) -> None:
    config.model.calculate_per_token_loss = False


def _average(config: Any) -> None:
    config.ddp.average_in_collective = True


def _fixed_entries(config: Any) -> None:
    dataset = config.dataset
    specs = getattr(dataset, "offline_packing_specs", None) or dataset.packed_sequence_specs
    specs.pad_cu_seqlens = True


def _pack_in_batch(config: Any) -> None:
    """Set the switch that validate reads: pack_sequences_in_batch up to 0.5, enable_in_batch_packing from 0.6."""
    name = "enable_in_batch_packing" if hasattr(config.dataset, "enable_offline_packing") else "pack_sequences_in_batch"
    setattr(config.dataset, name, True)


def _graphs(config: Any) -> None:
    config.model.cuda_graph_impl = "transformer_engine"


def _graphs_of_full_rows(config: Any) -> None:
    _graphs(config)
    config.dataset.dataset_kwargs = {"pad_to_max_length": True}


_MODELS = "megatron.bridge.models"
_PACKED_DATASET = (
    "megatron.bridge.data.packing.gpt_sft:GPTSFTPackedDataset",
    "megatron.bridge.data.datasets.sft:GPTSFTPackedDataset",  # up to 0.5
)
_OMNI_COLLATOR = f"{_MODELS}.qwen_omni.data.collate_fn", "qwen3_omni_collate_fn"
_NEMOTRON_COLLATOR = f"{_MODELS}.nemotron_vl.data.collate_fn", "nemotron_nano_v2_vl_collate_fn"
COMBINATIONS: Mapping[str, Combination] = {
    "offline-micro-batch-2": Combination(attempt=_validated(_two_rows), says=r"micro batch size should be 1"),
    "in-batch-micro-batch-1": Combination(
        attempt=_validated(_one_row, in_batch=True), says=r"micro_batch_size should be greater than 1"
    ),
    "cp-seq-length": Combination(attempt=_validated(_odd_length, cp=2), says=r"divisible by 2 \* context parallel"),
    "cp-mean-loss": Combination(attempt=_validated(_mean_loss, cp=2), says=r"calculate_per_token_loss must be True"),
    "cp-average-in-collective": Combination(
        attempt=_validated(_average, cp=2), says=r"average_in_collective must be False|average in collective"
    ),
    "pad-cu-seqlens-free-rows": Combination(
        attempt=_validated(_fixed_entries), says=r"pad_cu_seqlens.*pad_to_max_length"
    ),
    "offline-and-in-batch": Combination(attempt=_validated(_pack_in_batch), says=r"mutually exclusive"),
    "pad-cu-seqlens-no-metadata": Combination(
        attempt=_fixed_offsets_without_metadata,
        says=r"metadata json file is required",
        needs=_PACKED_DATASET,
        validator="Megatron-Bridge GPTSFTPackedDataset",
    ),
    "in-batch-opt-out": Combination(
        attempt=_collated(*_OMNI_COLLATOR),
        says=r"does not support in-batch packing",
        needs=(":".join(_OMNI_COLLATOR),),
        validator="Megatron-Bridge qwen3_omni_collate_fn",
        since=(0, 6),
    ),
    "in-batch-nemotron-vl": Combination(
        attempt=_collated(*_NEMOTRON_COLLATOR),
        says=r"does not support in-batch packing",
        needs=(":".join(_NEMOTRON_COLLATOR),),
        validator="Megatron-Bridge nemotron_nano_v2_vl_collate_fn",
        since=(0, 6),
    ),
    "in-batch-qwen3-omni-step": Combination(
        attempt=_packed_for_omni_step,
        says=r"packed sequence support is not implemented",
        needs=(f"{_MODELS}.qwen_omni.qwen3_omni_step:forward_step",),
        validator="Megatron-Bridge qwen3_omni_step.forward_step",
        since=(0, 6),
    ),
    "collated-qwen3-vl-step": Combination(
        attempt=_packed_for_qwen3_vl_step,
        says=r"does not support collate-time in-batch packing",
        needs=(f"{_MODELS}.qwen_vl.qwen3_vl_step:get_batch_from_iterator",),
        validator="Megatron-Bridge qwen3_vl_step.get_batch_from_iterator",
        since=(0, 6),
    ),
    "deferred-vlm-step": Combination(
        attempt=_deferred_in_vlm_step,
        says=r"requires collate-time in-batch packing",
        needs=("megatron.bridge.training.vlm_step:forward_step",),
        validator="Megatron-Bridge vlm_step.forward_step",
        since=(0, 6),
    ),
    "offsets-of-two-rows": Combination(
        attempt=_offsets_of_two_rows,
        says=r"expect micro-batch size 1",
        needs=("megatron.bridge.training.gpt_step:_partition_packed_batch_for_cp",),
        validator="Megatron-Bridge gpt_step",
    ),
    "offline-virtual-tokens": Combination(
        attempt=_virtual_tokens,
        says=r"P-Tuning with packed sequence is not supported",
        needs=_PACKED_DATASET,
        validator="Megatron-Bridge GPTSFTPackedDataset",
    ),
    "offline-graphs-free-rows": Combination(
        attempt=_validated(_graphs), says=r"CUDA graphs requires.*pad_to_max_length"
    ),
    "offline-graphs-free-offsets": Combination(
        attempt=_validated(_graphs_of_full_rows), says=r"CUDA graphs require.*pad_cu_seqlens"
    ),
    "megatron-local-attention": Combination(
        attempt=_packed_for_local_attention,
        says=r"Packed sequence is not supported by DotProductAttention",
        needs=("megatron.core.transformer.dot_product_attention:DotProductAttention",),
        validator="Megatron-LM DotProductAttention",
    ),
    "megatron-cp-seq-length": Combination(
        attempt=_odd_length_of_megatron,
        says=r"multiple of 2 \* context-parallel-size",
        needs=("megatron.training.arguments:validate_args",),
        validator="Megatron-LM validate_args",
    ),
    "megatron-iterator-on-every-rank": Combination(
        attempt=_iterator_on_every_rank,
        says=r"only tp rank 0 .*should have data_iterator",
        needs=("megatron.core.datasets.data_schedule:wrap_data_iterator",),
        validator="Megatron-LM wrap_data_iterator",
        since=(0, 20),
    ),
}
# What Megatron-Bridge up to 0.5 does not refuse, and why; 0.6 refuses all.
GAPS_UNTIL_06: Mapping[str, str] = {
    "pad-cu-seqlens-free-rows": "up to 0.5 it is refused only when the dataset is built",
    "offline-and-in-batch": "up to 0.5 only in-batch packing of one row is refused, not both packings",
    "in-batch-qwen3-omni-step": "up to 0.5 the step ignores in-batch packing",
    "collated-qwen3-vl-step": "up to 0.5 the step accepts rows that the collator has packed",
    "deferred-vlm-step": "up to 0.5 packing cannot be left to a step, and nothing refuses it",
    "offline-graphs-free-rows": "up to 0.5 CUDA graphs are accepted with rows of any length",
    "offline-graphs-free-offsets": "up to 0.5 CUDA graphs are accepted with offsets of any number",
}
