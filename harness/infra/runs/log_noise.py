"""Lines that other packages write into every log and that say nothing about a run; `harness logs` leaves them out."""

from __future__ import annotations

import re

# Pattern of a whole line -> what writes it.
NOISE = {
    r"nanobind: leaked \d+ .*": "nanobind, when a process ends: nb_internals.cpp, internals_cleanup",
    r" - leaked (function|type|instance|keep_alive|.*record).*": "the same",
    r" - \.\.\. skipped remainder": "the same",
    r"nanobind: this is likely caused by a reference counting issue in the binding code\.": "the same",
    r"See https://nanobind\.readthedocs\.io/.*": "the same",
    r".*UserWarning: (Transformer Engine and Apex are|Apex is|absl\.logging is) not installed.*": "megatron.core",
    r"  warnings\.warn\(.*": "the second line of such a warning",
    r"\[W.* Warning: Environment variable TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated.*": "torch: c10d/Utils.hpp",
}
_NOISE = re.compile("|".join(f"(?:{pattern})" for pattern in NOISE))


def without_noise(text: str) -> str:
    """The text without those lines; every other character is unchanged."""
    return "".join(line for line in text.splitlines(keepends=True) if not is_noise(line))


def is_noise(line: str) -> bool:
    return _NOISE.fullmatch(line.rstrip("\r\n")) is not None
