"""From the small keys of a training run to the sections of a matrix file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core.cell.arguments import OF_OPTIMIZER
from harness.core.cell.axis_values import HARNESS
from harness.matrix.arguments import as_flag
from harness.matrix.intake.run import LeftOut, Translation
from harness.matrix.intake.shrink import Shrunk

STEPS = 3
_OWN_LOOP = "cells train in the harness's own loop, which takes only the optimizer's arguments"
NOT_PACKED = "unpacked"  # the data path of runs that do not pack


def sections(result: Translation, shrunk: Shrunk, *, trainer: str) -> dict[str, Any]:
    """Return `model`, `train`, `packing_options`, `args` and the axes without the layout, as in a matrix file.

    `trainer`: of the cells. The harness's own loop takes none but the arguments of the optimizer.
    """
    found: dict[str, Any] = {"model": {}, "train": {"steps": STEPS}, "packing_options": {}, "axes": {}}
    for name, value in shrunk.keys.items():
        section, _, key = name.partition(".")
        if not key:
            found["axes"][name] = value
            continue
        part, _, field = key.partition(".")
        target = found[section].setdefault(part, {}) if field else found[section]
        target[field or key] = value
    found["args"] = {name: _written(words) for name, words in _passed(result, trainer).items()}
    found["axes"] |= {"packing": result.packing or NOT_PACKED, "trainer": trainer}
    if found["axes"].get("dtype") == "bf16":
        found["axes"]["dtype"] = ["bf16", "fp32"]  # rounding in bf16 hides small errors, such as wrong positions
    return found


def _passed(result: Translation, trainer: str) -> dict[str, tuple[str, ...]]:
    """Return the arguments that cells of this trainer get."""
    return {name: words for name, words in result.args.items() if trainer != HARNESS or name in OF_OPTIMIZER}


def _written(words: tuple[str, ...]) -> Any:
    if not words:
        return True
    return _scalar(words[0]) if len(words) == 1 else [_scalar(word) for word in words]


def _scalar(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def by_reason(left_out: list[LeftOut]) -> dict[str, list[str]]:
    """Return the settings that are left out, by their reason, in the order in which reasons first occur."""
    found: dict[str, list[str]] = {}
    for entry in left_out:
        found.setdefault(entry.reason, []).append(entry.setting)
    return found


def origin(result: Translation, shrunk: Shrunk, source: str, *, trainer: str) -> Mapping[str, Any]:
    """Return the section `origin`: what the run has become in cells of this trainer."""
    args = _passed(result, trainer)
    dropped = [
        LeftOut(setting=as_flag(name, words), reason=_OWN_LOOP)
        for name, words in result.args.items()
        if name not in args
    ]
    reasons = by_reason([*result.left_out, *dropped])
    if result.not_packed:
        reasons = {result.not_packed: [f"cells have one document per row (packing: {NOT_PACKED})"], **reasons}
    return {
        "source": source,
        "kept": [
            *shrunk.kept,
            *result.same,
            *(f"{name} {' '.join(words)}".rstrip() for name, words in args.items()),
        ],
        "shrunk": [str(change) for change in shrunk.changes],
        "not_tested": reasons,
    }
