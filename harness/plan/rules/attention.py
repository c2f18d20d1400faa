"""Rules of attention kernels and compute dtypes: the limits of core/cell/attention.py, and of pinned stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.core.cell.attention import KERNELS, LIMITS, TE_KINDS, TE_PADDING, te_auto_padding
from harness.core.cell.config import CellConfig
from harness.core.stack import DEFAULT, Stack
from harness.plan.rules.rule import Own, Rule

_PINNED = re.compile(r"transformer[-_]engine(?:[-_](?:torch|cu\d+))?(?:\[[^\]]*\])?==(\d+(?:\.\d+)*)")
_SETS_PAD_BETWEEN_SEQS = (0, 19)  # first megatron-core whose PackedSeqParams has pad_between_seqs
_CORE = re.compile(r"megatron[-_]core==(\d+(?:\.\d+)*)")


def fp8(config: CellConfig) -> str | None:
    """The first unmet requirement of fp8; the last one is a limit of the probe."""
    if config.device == "cpu":
        return "dtype fp8 needs a GPU of compute capability 8.9 or more, and device is cpu"
    if config.attention not in TE_KINDS:
        return f"dtype fp8 needs Transformer Engine, and attention is {config.attention}"
    multiple = 16 * config.layout.cp
    if config.style.packed and config.style.document_multiple % multiple:
        return (
            f"dtype fp8 needs documents padded to a multiple of 16 x cp {config.layout.cp} = {multiple}, and they are "
            f"padded to a multiple of {config.style.document_multiple}"
        )
    return "dtype fp8 needs an fp8 recipe for every linear layer, which this version of the probe does not set"


def te_version_rule(stacks: Mapping[str, Stack]) -> Rule[CellConfig]:
    """The rule for stacks that pin Transformer Engine; for others the node checks the installed release."""

    def concerns(own: Own) -> bool:
        return own.attention in TE_KINDS and own.stack != DEFAULT and own.stack in stacks

    def predicate(config: CellConfig) -> str | None:
        packages = (*stacks[config.stack].packages, *stacks[config.stack].no_deps)
        engine, core = _pinned(_PINNED, packages), _pinned(_CORE, packages)
        if engine is None:
            return None
        padding_set = config.path.sets_pad_between_seqs and core is not None and core[:2] >= _SETS_PAD_BETWEEN_SEQS
        return te_auto_padding(engine, config, padding_set)

    return Rule(*TE_PADDING, predicate, concerns)


def _pinned(pattern: re.Pattern[str], packages: tuple[str, ...]) -> tuple[int, ...] | None:
    """The version in the first matching requirement."""
    found = next((match for item in packages if (match := pattern.match(item.replace(" ", "")))), None)
    return tuple(int(part) for part in found.group(1).split(".")) if found else None


def _asks_for_kernel(own: Own) -> bool:
    return own.attention in KERNELS


def _asks_for_fp8(own: Own) -> bool:
    return own.dtype == "fp8"


_FP8_SOURCE = "SkyRL get_packed_seq_align_size, verl: fp8 needs 16 tokens of each rank; harness"
RULES: tuple[Rule[CellConfig], ...] = (
    *(Rule(limit.id, limit.source, limit.predicate, _asks_for_kernel) for limit in LIMITS),
    Rule("dtype.fp8", _FP8_SOURCE, fp8, _asks_for_fp8),
)
