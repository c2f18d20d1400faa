"""Adapters of a cell's model: Megatron-Bridge's LoRA and its relatives, which train while all other weights stay."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.setting import setting

LORA, DORA, CANONICAL = METHODS = ("lora", "dora", "canonical_lora")
# The linear layers that upstream adapts unless told otherwise, by the last part of their names.
TARGETS = {
    LORA: ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    DORA: ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    CANONICAL: (
        "linear_q",
        "linear_k",
        "linear_v",
        "linear_proj",
        "linear_fc1_up",
        "linear_fc1_gate",
        "linear_fc2",
    ),
}
# Canonical LoRA has adapters for parts of these layers.
_PARTS = {
    **dict.fromkeys(("linear_q", "linear_k", "linear_v"), "linear_qkv"),
    **dict.fromkeys(("linear_fc1_up", "linear_fc1_gate"), "linear_fc1"),
}
_RANK, _ALPHA = 4, 8
_MARK = ".adapter."
_NAME = re.compile(r"\w+")


def _checked_targets(targets: list[str]) -> list[str]:
    for target in targets:
        if not _NAME.fullmatch(target):
            raise ValueError(f"must be names of layers, without wildcards; {target!r} is not")
    return targets


@dataclass(frozen=True, kw_only=True)
class PeftConfig:
    """Adapters beside linear layers; every other weight is frozen."""

    method: str = setting(LORA, doc="Class of Megatron-Bridge that adds the adapters.", choices=METHODS)
    rank: int = setting(_RANK, doc="Rank of an adapter.", ge=1, le=2**14, aliases=("dim",))
    alpha: int = setting(_ALPHA, doc="An adapter's output is scaled by alpha over rank.", ge=1, le=2**20)
    targets: tuple[str, ...] = setting(
        (),
        doc="Linear layers with adapters, as upstream's target_modules; if omitted, all that upstream adapts itself.",
        aliases=("target_modules",),
        check=_checked_targets,
        values="list of names, e.g. `[linear_qkv]`",
    )

    @property
    def merges(self) -> bool:
        """Whether upstream merges one adapter into one weight; the others are merged only when a model is exported."""
        return self.method == LORA

    @property
    def adapted(self) -> tuple[str, ...]:
        """What upstream gets as target_modules."""
        return self.targets or TARGETS[self.method]

    def adapts(self, name: str) -> bool:
        """Return whether the layer of a weight, by its global name, has an adapter."""
        layer = name.removesuffix(".weight").rpartition(".")[2]
        return name.endswith(".weight") and layer in {_PARTS.get(target, target) for target in self.adapted}

    def __str__(self) -> str:
        """As part of a cell's name: lora4, dora4-alpha2, lora8-qkv_proj."""
        name = f"{self.method}{self.rank}"
        name += f"-alpha{self.alpha}" if self.alpha != _ALPHA else ""
        short = "_".join(target.removeprefix("linear_") for target in self.targets)
        return f"{name}-{short}" if short else name


def is_adapter(name: str) -> bool:
    """Return whether a parameter, by its global name, belongs to an adapter."""
    return _MARK in name
