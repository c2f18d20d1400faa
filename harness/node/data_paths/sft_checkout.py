"""`sft` with a Megatron-LM checkout first on the path: its own pretrain_gpt.forward_step, with its get_batch.

forward_step is given a stand-in for the model that keeps what the model would be called with; the probe then calls the
real model with just that. So the wiring between dataset, broadcast, context split and PackedSeqParams is upstream's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import megatron.core

from harness.node.data_paths.base import Batch, RankContext


def find() -> Path | None:
    """The checkout that megatron.core was imported from; None when it is an installed package."""
    root = Path(str(megatron.core.__file__)).resolve().parents[2]
    return root if (root / "pretrain_gpt.py").is_file() else None


def unavailable() -> str | None:
    return "not built yet"


class Checkout:
    def __init__(self, context: RankContext) -> None:
        self.context = context

    def batch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        raise NotImplementedError
