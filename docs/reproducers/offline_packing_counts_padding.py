"""Megatron-Bridge main since 84e7948ea (PR 5213): packed offline, the padding of documents counts in the loss.

    python offline_packing_counts_padding.py

If documents are padded (pad_seq_to_mult above 1, as context parallelism needs), _pre_pad_data_point appends
end-of-sentence tokens. Of prompts and answers that are no chats there is no loss mask yet: fill_packing_strategy makes
it of all slots after the prompt, padding included. Until PR 5213 collate_fn took out the slots of end-of-sentence
tokens. Here a document has a prompt of one token and an answer of three, so three labels count, and one slot is
padding. Exit code 1 if more count.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from megatron.bridge.data.builders.gpt_sft import GPTSFTDatasetBuilder, GPTSFTDatasetConfig
from megatron.bridge.data.packing.config import PackedSequenceSpecs

EOS = 1


class Tokenizer:
    eos_id = eod = bos_id = EOS
    legacy = space_sensitive = False
    _tokenizer = None

    def tokenize(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    text_to_ids = tokenize


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        line = json.dumps({"input": "5", "output": f"6 7 {EOS}"})
        (Path(folder) / "training.jsonl").write_text(line + "\n", encoding="utf-8")
        specs = PackedSequenceSpecs(
            packed_sequence_size=4, tokenizer_model_name="numbers", num_tokenizer_workers=1, pad_seq_to_mult=4
        )
        config = GPTSFTDatasetConfig(
            dataset_root=folder,
            seq_length=4,
            enable_offline_packing=True,
            offline_packing_specs=specs,
            dataset_kwargs={"add_eos": False},
            do_validation=False,
            do_test=False,
        )
        dataset = GPTSFTDatasetBuilder(config, Tokenizer()).build()[0]
        batch = dataset.collate_fn([dataset[0]])
    found, right = batch["loss_mask"].tolist(), [[1, 1, 1, 0]]
    print(f"tokens {batch['tokens'].tolist()}, labels {batch['labels'].tolist()}")
    print(f"loss mask {found}, expected {right}")
    return int(found != right)


if __name__ == "__main__":
    sys.exit(main())
