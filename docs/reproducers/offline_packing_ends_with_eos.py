"""Megatron-Bridge 0.6.2 and main of 2026-08: packed offline, a real end-of-sentence token is taken for padding.

    python offline_packing_ends_with_eos.py

If documents are padded (pad_seq_to_mult above 1), GPTSFTPackedDataset.collate_fn finds the end of a document by its
last token other than the end-of-sentence id, with which it also pads. A document whose inputs end with that id, as
where the answer already ends with it and add_eos adds another, is too short in cu_seqlens_q: attention kernels treat
its last token, which counts in the loss, as padding. Here a document has the inputs 5, 6 and end of sentence, and one
slot of padding. Exit code 1 if cu_seqlens_q does not end it after three tokens.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from megatron.bridge.data.packing.gpt_sft import GPTSFTPackedDataset

EOS = 1


class Tokenizer:
    eos_id = eod = bos_id = EOS
    legacy = space_sensitive = False
    _tokenizer = None

    def text_to_ids(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]


def main() -> int:
    row = {"input_ids": [5, 6, EOS, EOS, EOS], "seq_start_id": [0], "loss_mask": [1, 1, 1, 0, 0]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.npy"
        np.save(file, np.array([row], dtype=object))
        dataset = GPTSFTPackedDataset(
            str(file),
            Tokenizer(),
            max_seq_length=4,
            label_key="output",
            prompt_template="{input} {output}",
            truncation_field="input",
            pad_to_max_length=True,
            pad_seq_to_mult=4,
        )
        batch = dataset.collate_fn([dataset[0]])
    found, right = batch["cu_seqlens_q"].tolist(), [[0, 3]]
    print(f"tokens {batch['tokens'].tolist()}, loss mask {batch['loss_mask'].tolist()}")
    print(f"cu_seqlens_q {found}, expected {right}; padded {batch['cu_seqlens_q_padded'].tolist()}")
    return int(found != right)


if __name__ == "__main__":
    sys.exit(main())
