"""Megatron-LM core_v0.19.0 and main of 2026-08: --dataloader-inter-document-masking crashes with more than two stages.

    PYTHONPATH=Megatron-LM python inter_document_stages.py

Every stage needs the offsets of documents, so pretrain_gpt.get_batch reads a batch on middle stages too. But
train_valid_test_datasets_provider builds the data set on every stage for --sft only: on a middle stage there is no
iterator, and next(None) raises. Here this process plays tensor-parallel rank 0 of a middle stage. Exit code 1 if it
raises.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pretrain_gpt


class Builder:
    """In the place of BlendedMegatronDatasetBuilder: whether upstream builds the data set on this rank."""

    def __init__(self, kind: type, samples: list[int], is_built_on_rank: Any, config: Any) -> None:
        self.built = is_built_on_rank()

    def build(self) -> tuple[bool, bool, bool]:
        return self.built, self.built, self.built


def main() -> int:
    args = SimpleNamespace(
        sft=False,
        mock_data=False,
        fim_data=False,
        dataloader_inter_document_masking=True,
        create_attention_mask_in_dataloader=False,
        hybrid_context_parallel=False,
        context_parallel_size=1,
    )
    config = SimpleNamespace(pipeline_model_parallel_layout=None, mtp_num_layers=None)
    given: dict[str, Any] = {
        "get_args": lambda: args,
        "print_rank_0": lambda text: None,
        "core_transformer_config_from_args": lambda args: config,
        "core_gpt_dataset_config_from_args": lambda args: None,
        "is_first_or_last_pipeline_stage": lambda stage: False,
        "mtp_on_this_rank_func": lambda **kwargs: False,
        "mpu": SimpleNamespace(get_tensor_model_parallel_rank=lambda: 0),
        "BlendedMegatronDatasetBuilder": Builder,
    }
    for name, value in given.items():
        setattr(pretrain_gpt, name, value)
    built, *_ = pretrain_gpt.train_valid_test_datasets_provider([1, 0, 0])
    iterator = iter([{}]) if built else None
    print(f"data set built on a middle stage: {built}")
    try:
        pretrain_gpt.get_batch(iterator)
    except TypeError as error:
        print(f"get_batch on that stage raises TypeError: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
