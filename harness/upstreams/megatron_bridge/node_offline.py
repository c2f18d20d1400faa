"""Megatron-Bridge offline packing: upstream's builder packs real files and reads them; gpt_step takes the batches.

| megatron-bridge | builder in data.builders | its configuration |
|---|---|---|
| 0.4, 0.5 | finetuning_dataset.FinetuningDatasetBuilder | FinetuningDatasetConfig: packed_sequence_specs |
| between | the same | FinetuningDatasetConfig: enable_offline_packing, offline_packing_specs |
| 0.6 | gpt_sft.GPTSFTDatasetBuilder | GPTSFTDatasetConfig: enable_offline_packing, offline_packing_specs |

Documents are passed as upstream's JSON lines, through a tokenizer that reads numbers; the first rank packs, as in
upstream. Documents of several turns are chats, whose tokens and masks upstream takes from the chat template of a
Hugging Face tokenizer. Upstream shuffles before it packs: here the shuffle puts the longest document first and keeps
the order of equally long ones, so that the plan knows the position of each document. Up to 0.5 upstream pads a
document's tokens, of which there is one more than labels, to pad_seq_to_mult; the plan follows 0.6. Where documents are
padded, upstream counts the last token unless it is the end of sentence, so documents must not be truncated.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.cell.config import CellConfig
from harness.core.packing.documents import Document
from harness.oracle.drawing import END
from harness.probe.truth import StepTruth
from harness.upstreams.megatron_bridge.node_step import BridgeStep, dataset_config, missing
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable, none_of
from harness.upstreams.node_tokenizer import conversation, write_tokenizer


class BridgeOfflinePath:
    """Pack files by upstream's builder, and read them by its dataset and gpt_step."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        truths = [
            StepTruth(context.config, step, context.place.dp) for step in range(max(context.config.train.steps, 1))
        ]
        self.datasets = {self._folder(truth): self._built(truth) for truth in truths}
        self.step = BridgeStep(context, packed_config(context.config, self._folder(truths[0])))

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        return missing("training.gpt_step", "training.config") or _no_builder()

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[Any]:
        """Return the rows of this rank's replica, in order, one per micro-batch; every rank reads."""
        folder = self._folder(truth)
        if folder not in self.datasets:  # a canary leg: all ranks get here together
            self.datasets[folder] = self._built(truth)
        dataset = self.datasets[folder]
        replicas, replica = self.context.config.layout.dp, self.context.place.dp
        # As upstream's sampler deals rows: one to each replica in turn.
        return (dataset.collate_fn([dataset[row]]) for row in range(replica, len(truth.plans) * replicas, replicas))

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        return self.step.batch(iterator, chunk)

    def _built(self, truth: StepTruth) -> Any:
        """Return the training dataset that upstream's builder packs on the first rank and reads on all."""
        if self.context.is_rank_zero:
            write_documents(self._folder(truth), truth, _words)
        with longest_first():
            return self._read(packed_config(self.context.config, self._folder(truth)), self._tokenizer(truth))

    def _tokenizer(self, truth: StepTruth) -> Any:
        """Return the tokenizer; ranks that do not pack need only the id of its end of sentence."""
        if not self.context.is_rank_zero or not is_chat(truth.config):
            return Numbers()
        folder = self._folder(truth)
        write_tokenizer(folder / "tokenizer", truth.config.model.vocab)
        return built_tokenizer(folder)

    def _read(self, config: Any, tokenizer: Any) -> Any:
        if missing("data.builders.gpt_sft") is None:
            from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder

            return GPTSFTDatasetBuilder(config, tokenizer).build()[0]
        from megatron.bridge.data.builders.finetuning_dataset import FinetuningDatasetBuilder

        accepted = inspect.signature(FinetuningDatasetBuilder.__init__).parameters
        # The old builder takes the fields of its configuration one by one, and releases differ in which.
        arguments = {name: getattr(config, name) for name in accepted if hasattr(config, name)}
        return FinetuningDatasetBuilder(tokenizer=tokenizer, **arguments).build()[0]

    def _folder(self, truth: StepTruth) -> Path:
        return self.context.folder / "bridge" / (truth.leg.name if truth.leg else f"step-{truth.step}")


class Numbers:
    """A tokenizer for text that consists of token ids, as upstream's datasets use it. Upstream pads with eos_id."""

    eos_id = eod = bos_id = END
    legacy = space_sensitive = False
    _tokenizer = None

    def tokenize(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    text_to_ids = tokenize


def packed_config(config: CellConfig, folder: Path, **packed: Any) -> Any:
    """Return upstream's dataset configuration with its PackedSequenceSpecs, for the documents in a folder.

    `packed`: further fields of PackedSequenceSpecs, such as the paths of files packed before.
    """
    specs = specs_class()(
        packed_sequence_size=config.train.seq_length,
        tokenizer_model_name="numbers",
        num_tokenizer_workers=1,
        pad_cu_seqlens=config.options.pad_cu_seqlens,
        pad_seq_to_mult=config.style.document_multiple,
        **packed,
    )
    return dataset_config(
        config, str(folder), specs, pad_to_max_length=config.options.pad_to_max_length, **read_as(config)
    )


def write_documents(folder: Path, truth: StepTruth, text: Callable[[list[int]], str]) -> None:
    """Write the documents of a step into `training.jsonl` of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [document_line(truth, document, text) for document in truth.documents]
    (folder / "training.jsonl").write_text("".join(lines), encoding="utf-8")


def document_line(truth: StepTruth, document: Document, text: Callable[[list[int]], str]) -> str:
    """Return a document as upstream's line of prompt and answer, or as a chat; a masked one is all prompt."""
    ids = truth.content(document)[: document.length + 1].tolist()
    if is_chat(truth.config):
        return json.dumps({"messages": conversation(ids, document)}) + "\n"
    # Upstream refuses an empty prompt; its one token is no label, so it masks nothing.
    prompt = len(ids) if document.masked else 1
    return json.dumps({"input": text(ids[:prompt]), "output": text(ids[prompt:])}) + "\n"


def is_chat(config: CellConfig) -> bool:
    """Return whether upstream gets documents as chats."""
    return config.documents.turns > 1


def read_as(config: CellConfig) -> dict[str, Any]:
    """Return the arguments of upstream's data sets of JSON lines."""
    chat = {"chat": True, "use_hf_tokenizer_chat_template": True} if is_chat(config) else {}
    # The documents' own last token is the end of sentence; a second one would be a token that the plan does not have.
    return {"add_eos": False, **chat}


def built_tokenizer(folder: Path) -> Any:
    """Return upstream's tokenizer, made of that of Hugging Face in `folder`/tokenizer."""
    from megatron.bridge.training.tokenizers.tokenizer import build_tokenizer

    return build_tokenizer(tokenizer_config(folder))


def tokenizer_config(folder: Path) -> Any:
    """Return upstream's configuration of that tokenizer."""
    from megatron.bridge.training.tokenizers.config import TokenizerConfig

    return TokenizerConfig(tokenizer_type="HuggingFaceTokenizer", tokenizer_model=str(folder / "tokenizer"))


def _words(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def write_packed_row(path: Path) -> None:
    """Write a packed file of one row with one document, as upstream's packing does."""
    row = {"input_ids": [1, 2, 3, END], "seq_start_id": [0], "loss_mask": [0, 1, 1, 1]}
    np.save(path, np.array([row], dtype=object))


@contextmanager
def longest_first() -> Iterator[None]:
    """Pin numpy's shuffles: first_fit_shuffle sees the longest document first, equal lengths keep their order.

    The permutation is reversed since fill_packing_strategy takes documents of one length from its end.
    """

    def shuffle(values: Any) -> None:
        values.sort(reverse=True)

    pinned = {"shuffle": shuffle, "permutation": lambda count: np.arange(count)[::-1]}
    originals = {name: getattr(np.random, name) for name in pinned}
    try:
        vars(np.random).update(pinned)
        yield
    finally:
        vars(np.random).update(originals)


def specs_class() -> Any:
    """Return upstream's PackedSequenceSpecs, whose module has moved after 0.5."""
    try:
        from megatron.bridge.data.packing.config import PackedSequenceSpecs
    except ModuleNotFoundError:  # up to 0.5
        from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs
    return PackedSequenceSpecs


def _no_builder() -> Unavailable:
    new, old = missing("data.builders.gpt_sft"), missing("data.builders.finetuning_dataset")
    return none_of(new, old) if new and old else None
