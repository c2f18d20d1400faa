"""The names by which upstream hands a batch on: arguments of the model's forward, and the fields of packed params that
the harness reads of every packed batch, or sets itself on `reference`.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.packing.fields import ALWAYS_READ
from harness.node.data_paths.lookup import Unavailable, not_in_release, release, takes

_MODULE = "megatron.core.packed_seq_params"
ARGUMENT = "packed_seq_params"
_TRAINED = ("input_ids", "position_ids", "labels", "loss_mask")  # read of the calls that upstream's trainers make
# Field that the harness sets -> the first release with it. Commits before it have its version too, and may lack it.
_SET = {"total_tokens": (0, 17), "tokens_per_sample": (0, 19), "pad_between_seqs": (0, 19)}


def unavailable_fields(config: CellConfig) -> Unavailable:
    """Which name that a cell needs is absent: an argument of the model, or a field of packed params; None when none
    is.
    """
    gpt: Any = importlib.import_module("megatron.core.models.gpt.gpt_model")
    for name in (ARGUMENT, *(() if config.own_trainer else _TRAINED)):
        if not takes(gpt.GPTModel.forward, name):
            reason = f"{release('megatron.core')} has no argument {name} of GPTModel.forward"
            return not_in_release(reason, "megatron.core")
    if not config.path.packs:
        return None
    upstream: Any = importlib.import_module(_MODULE)
    version = importlib.import_module("megatron.core.package_info")
    here = (int(version.MAJOR), int(version.MINOR))
    needed = [*ALWAYS_READ, *(name for name, first in _SET.items() if config.data_path == "reference" and here > first)]
    known = {item.name for item in dataclasses.fields(upstream.PackedSeqParams)}
    absent = [f"{_MODULE}.PackedSeqParams.{name}" for name in needed if name not in known]
    return not_in_release(f"{release('megatron.core')} has no {', '.join(absent)}", "megatron.core") if absent else None
