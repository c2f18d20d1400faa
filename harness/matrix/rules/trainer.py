"""Rules of upstream's own trainers: what the harness passes to them, what they need, and how they continue."""

from __future__ import annotations

from harness.core.cell.arguments import OF_OPTIMIZER
from harness.core.cell.axis_values import BUILT_IN_TRAINERS, HARNESS
from harness.core.cell.config import CellConfig
from harness.core.cell.model import ModelConfig
from harness.core.packing.documents import MIXES
from harness.core.setting import keys_of
from harness.matrix.rules.rule import Rule
from harness.upstreams.table import DATA_PATHS, UPSTREAM_TRAINERS, names

# Keys of the model that every adapter passes on; what its own does besides: `Trainer.model`.
OF_ALL = (
    *("layers", "hidden", "heads", "kv_heads", "head_size", "ffn", "vocab", "tied", "norm_epsilon"),
    *("qkv_bias", "qk_layernorm", "rope_base", "rope_scaling", "rope_scaling_factor"),
)
# Trainer -> data paths on which the labels of ends may count. The harness's own have whatever labels documents have.
_WITH_ENDS_LABELLED = {"megatron": ("inter_document",), HARNESS: ("unpacked", "reference")}
_DYNAMIC = ("dynamic_context_parallel", "hybrid_context_parallel")
_DYNAMIC_SCHEDULER = "default_dynamic_cp"


def data_path_has_trainer(config: CellConfig) -> str | None:
    if config.trained_by_harness or config.trainer in config.path.trainers or config.trainer not in BUILT_IN_TRAINERS:
        return None  # a trainer of a plug-in says itself what it cannot run
    able = names(path for path in DATA_PATHS.values() if config.trainer in path.trainers)
    return f"trainer is {config.trainer}, which reads the data of packing {able}, and packing is {config.data_path}"


def data_path_needs_trainer(config: CellConfig) -> str | None:
    if not config.trained_by_harness or not config.path.only_trained:
        return None
    able = " or ".join(config.path.trainers)
    return f"trainer is {config.trainer}, and only trainer {able} reads the data of packing {config.data_path}"


def equal_steps(config: CellConfig) -> str | None:
    """Upstream's global batch size is one number of rows for all steps."""
    trainer = UPSTREAM_TRAINERS.get(config.trainer)
    if config.documents.mode in MIXES or trainer is None or not trainer.global_batch:
        return None
    try:
        counts = [_rows_of_step(config, step) for step in range(config.train.passes)]
    except ValueError:
        return None  # a rule of the layout names the step
    unequal = next((step for step, count in enumerate(counts) if count != counts[0]), None)
    if unequal is None:
        return None
    rows = f"step 0 has {counts[0]} rows and step {unequal} has {counts[unequal]}"
    return f"{rows}; {trainer.global_batch} is one for all steps"


def _rows_of_step(config: CellConfig, step: int) -> int:
    return len(config.samples(step))


def trains(config: CellConfig) -> str | None:
    if config.trained_by_harness or config.train.steps:
        return None
    return f"train.steps is 0, and trainer {config.trainer} fetches batches only to train; use trainer: harness"


def plain_model(config: CellConfig) -> str | None:
    trainer = UPSTREAM_TRAINERS.get(config.trainer)
    if trainer is None:
        return None
    supported = {*OF_ALL, *trainer.model}
    unsupported = [
        f"model.{name}"
        for name, key in keys_of(ModelConfig).items()
        if name not in supported and getattr(config.model, name) != key.default
    ]
    unsupported += ["train.label_smoothing"] if config.train.label_smoothing else []
    return f"trainer {config.trainer} is not given {unsupported[0]}; use trainer: harness" if unsupported else None


def equal_metadata(config: CellConfig) -> str | None:
    """Upstream reads the rows of all steps from one file, so its offsets have as many entries in every step."""
    if config.trained_by_harness or not config.options.pad_cu_seqlens or config.documents.mode in MIXES:
        return None
    try:
        metadata = [config.micro_batches(step)[0][0].metadata for step in range(config.train.passes)]
    except ValueError:
        return None  # a rule of the layout names the step
    unequal = next((step for step, about in enumerate(metadata) if about != metadata[0]), None)
    if unequal is None:
        return None
    return f"pad_cu_seqlens is true, and the longest rows and documents of step 0 and step {unequal} differ"


def rows_in_files(config: CellConfig) -> str | None:
    files = config.data_files
    if files == 1:
        return None
    blending = [name for name, trainer in UPSTREAM_TRAINERS.items() if trainer.blends]
    if config.trainer not in blending:
        able = ", ".join(blending)
        return f"data_files is {files}, and trainer is {config.trainer}; only {able} reads several files"
    try:
        rows = _rows_of_step(config, 0)
    except ValueError:
        return None  # a rule of the layout names the step
    return f"data_files is {files}, and a step has {rows} rows" if rows < files else None


def documents_end(config: CellConfig) -> str | None:
    """GPTDataset leaves only end-of-document tokens out of the loss; a row's last slot predicts the next row."""
    if config.trainer != "megatron" or config.path.chats:
        return None
    for step in range(config.train.passes):
        for document in config.documents_of(step):
            cut = document.length < document.original_length
            what = "masked" if not all(document.loss_mask) else "truncated" if cut else ""
            if what:
                return (
                    f"document {document.index} of step {step} is {what}, and GPTDataset masks only ends of documents"
                )
    return None


def ends_are_labelled(config: CellConfig) -> str | None:
    """Without --eod-mask-loss GPTDataset counts every label but those that are padding."""
    if config.train.eod_mask_loss:
        return None
    paths = _WITH_ENDS_LABELLED.get(config.trainer, ())
    if config.data_path not in paths:
        where = " and ".join(
            f"packing {' or '.join(names)} with trainer {name}" for name, names in _WITH_ENDS_LABELLED.items()
        )
        return (
            f"train.eod_mask_loss is false, and packing is {config.data_path} with trainer {config.trainer}; only "
            f"{where} can have it"
        )
    for step in range(config.train.passes):
        short = next((document for document in config.documents_of(step) if document.original_length < 2), None)
        if short:
            return (
                f"train.eod_mask_loss is false, and document {short.index} of step {step} has no token before its end"
            )
        if config.trainer != HARNESS and (row := _unfilled(config, step)) is not None:
            return (
                f"train.eod_mask_loss is false, and row {row} of step {step} has padding, whose labels would count: "
                f"set documents of which the labels fill rows of train.seq_length {config.train.seq_length}"
            )
    return None


def _unfilled(config: CellConfig, step: int) -> int | None:
    """Return the first row of a step with slots that hold no labelled token; None also where rows cannot be made."""
    try:
        rows = config.samples(step)
    except ValueError:
        return None  # a rule of the layout names the step
    full = [all(item.padded_length == item.document.length for item in row.placed) and not row.tail for row in rows]
    return full.index(False) if False in full else None


def replicas_read_alike(config: CellConfig) -> str | None:
    """MegatronPretrainingSampler deals one document to every replica in turn, and drops what is left."""
    count, dp = config.train.global_batch, config.layout.dp
    if not config.packed_later or count % dp == 0:
        return None
    return f"a step has {count} documents, which {dp} replicas cannot read in equal numbers"


def documents_fit(config: CellConfig) -> str | None:
    """VarlenDataset keeps seq_length labels of a longer document, and replaces the last by the end of a document."""
    if not config.packed_later:
        return None
    for step in range(config.train.passes):
        for document in config.documents_of(step):
            if document.original_length >= config.train.seq_length:
                return (
                    f"document {document.index} of step {step} has {document.original_length + 1} tokens, more than "
                    f"train.seq_length {config.train.seq_length}, and upstream's data set ends what it cuts with </s>"
                )
    return None


def documents_not_padded(config: CellConfig) -> str | None:
    if not config.packed_later or config.options.pad_seq_to_mult is None:
        return None
    return "pad_seq_to_mult is set, and the data set that the scheduler reads pads documents itself"


def context_groups_are_fixed(config: CellConfig) -> str | None:
    """DefaultDynamicCPScheduler gives every micro-batch its own group of context-parallel ranks."""
    args = config.args
    switch = next((name for name in _DYNAMIC if args.text(name)), None)
    scheduler = args.text("sequence_packing_scheduler")
    if switch is None and scheduler != _DYNAMIC_SCHEDULER:
        return None
    flag = f"--{switch.replace('_', '-')}" if switch else f"--sequence-packing-scheduler {scheduler}"
    return (
        f"{flag} changes the context-parallel size from micro-batch to micro-batch: of upstream's attentions only "
        "Transformer Engine's takes a group per micro-batch, which needs a GPU, and the packing plan has one size"
    )


def mock_documents(config: CellConfig) -> str | None:
    """Return what upstream's mock data sets need of the section `documents`."""
    documents, train = config.documents, config.train
    if not documents.mock:
        return None
    if config.trainer != HARNESS and not config.path.scheduled:
        able = names(path for path in DATA_PATHS.values() if path.scheduled)
        return f"documents.mock is true, and with trainer {config.trainer} only packing {able} has mock data sets"
    if documents.turns > 1 or documents.delimited:
        return "documents.mock is true, and mock documents have no turns"
    if config.trainer != HARNESS and not train.eval_interval:
        return (
            "documents.mock is true without train.eval_interval, and upstream's loader refuses a data set of no samples"
        )
    if documents.min_seq_len < 2:
        return "documents.mock is true, and a document of one token has no label"
    longest = documents.max_seq_len
    return f"token {longest - 1} of a mock document is not in model.vocab" if longest > config.model.vocab else None


def arguments_are_applied(config: CellConfig) -> str | None:
    """Every trainer gets arguments of the optimizer; only some get others, or fields of a configuration."""
    trainer = UPSTREAM_TRAINERS.get(config.trainer)
    line, fields = (trainer is not None and trainer.arguments == kind for kind in ("command line", "fields"))
    candidates = [argument for argument in config.args.given if argument.name not in OF_OPTIMIZER]
    unapplied = next((argument for argument in candidates if not (fields if argument.is_field else line)), None)
    if unapplied is None:
        return None
    what = "any argument of the command line" if line else "only arguments of the optimizer"
    what += " and fields of its configuration" if fields else ""
    return f"trainer is {config.trainer}, which gets {what}, not {unapplied.flag[0]}"


TRAINER_RULES: tuple[Rule, ...] = (
    Rule("trainer.data-path", "harness: the adapters of upstream's trainers", data_path_has_trainer),
    Rule("trainer.needed", "harness: the adapters of upstream's trainers", data_path_needs_trainer),
    Rule("trainer.steps", "harness: the adapters of upstream's trainers", trains),
    Rule("trainer.rows", "Megatron-LM and Megatron-Bridge: one global batch size", equal_steps),
    Rule("trainer.metadata", "Megatron-Bridge PackedSequenceSpecs: one packed_metadata_path", equal_metadata),
    Rule("trainer.files", "harness: the adapters of upstream's trainers", rows_in_files),
    Rule(
        "trainer.masks",
        "harness: writes rows that GPTDataset's _get_ltor_masks_and_position_ids masks at ends of documents alone",
        documents_end,
    ),
    Rule("trainer.ends", "Megatron-LM GPTDatasetConfig.eod_mask_loss: of its pretraining data set", ends_are_labelled),
    Rule("trainer.replicas", "Megatron-LM MegatronPretrainingSampler", replicas_read_alike),
    Rule("trainer.truncation", "Megatron-LM VarlenDataset.__getitem__ of branch dev", documents_fit),
    Rule("trainer.padding", "Megatron-LM SFTDataset._calculate_padding_divisor", documents_not_padded),
    Rule(
        "trainer.dynamic-cp",
        "Megatron-LM DefaultDynamicCPScheduler of branch dev, HybridCPDataLoaderWrapper; TEDotProductAttention.forward",
        context_groups_are_fixed,
    ),
    Rule("trainer.mock", "Megatron-LM MockSFTLowLevelDataset of branch dev", mock_documents),
    Rule("trainer.model", "harness: the adapters of upstream's trainers", plain_model),
    Rule("trainer.args", "harness: its own loop, and each trainer's configuration", arguments_are_applied),
)
