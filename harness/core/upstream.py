"""The upstream code that a stack puts under test: its distributions and the modules that carry their versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

# Distribution -> its top module. In the order in which they say what was under test, the most specific first.
DISTRIBUTIONS: Mapping[str, str] = {
    "megatron-core": "megatron.core",
    "megatron-bridge": "megatron.bridge",
    "skyrl": "skyrl",
    "skyrl-train": "skyrl_train",
    "nemo-rl": "nemo_rl",
    "verl": "verl",
    "transformer-engine": "transformer_engine",
    "torch": "torch",
}
# Modules of the wheel and of checkouts of Megatron-LM that no distribution is named after.
TRAINING_MODULES = ("megatron.training", "pretrain_gpt")
# The modules whose version and file every rank records.
HEADS = (*DISTRIBUTIONS.values(), *TRAINING_MODULES)


def distribution_of(module: str) -> str:
    """The distribution of a top module, e.g. "megatron-bridge" of "megatron.bridge"."""
    named = {top: name for name, top in DISTRIBUTIONS.items()}
    return named.get(module, module.replace("_", "-"))


# Matrices run releases from 0.14 and commits of 0.13; of older ones some data paths do not run, others crash.
OLDEST_CORE = (0, 13)


def why_unsupported(core: Path, what: str = "the harness", first: tuple[int, int] = OLDEST_CORE) -> str:
    """Why the megatron.core in a folder is too old for `what`, which supports `first` and later; empty if it is not.

    The version is read, not imported: the modules of an old release may not even be imported.
    """
    info = core / "package_info.py"
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    numbers = [re.search(rf"^{part} *= *(\d+)", text, re.M) for part in ("MAJOR", "MINOR", "PATCH")]
    version = [int(found[1]) for found in numbers if found]
    if len(version) < 3 or tuple(version[:2]) >= first:
        return ""
    oldest = ".".join(map(str, first))
    return f"{core} is megatron-core {'.'.join(map(str, version))}, and {what} supports {oldest} and later"
