"""The upstream code that a stack puts under test: its distributions and the modules that carry their versions."""

from __future__ import annotations

from collections.abc import Mapping

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
