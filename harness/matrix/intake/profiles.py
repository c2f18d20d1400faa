"""Profiles: what a pasted command line sets of a matrix that does not set it itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from harness.core.cell.axes import axes as plain_axes
from harness.core.cell.axes import dotted
from harness.core.cell.layout import Layout
from harness.core.setting import keys_of
from harness.matrix.arguments import Profile, as_flag, owner_of
from harness.matrix.axes import Axes, Row
from harness.matrix.intake.run import TrainingRun
from harness.matrix.problems import Problems
from harness.upstreams.megatron_lm.translation import translate

_LAYOUT = tuple(keys_of(Layout))
# The sizes of a matrix are its own, since its model is small.
_SIZES = (
    *(f"model.{name}" for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "head_size", "window")),
    *(f"train.{name}" for name in ("steps", "global_batch", "seq_length")),
    *("dp", "packing_options.calculate_per_token_loss"),
)


def with_profiles(
    axes: Axes, profiles: Mapping[str, Profile], sections: Mapping[str, Mapping[str, Any]], problems: Problems
) -> tuple[Axes, dict[str, Profile]]:
    """Return the axes with the values that profiles set where the matrix does not, and the profiles with what was
    taken and left out.

    `sections`: `model`, `train` and `packing_options` as written. A value that contradicts one of the matrix is a
    problem; sizes and layouts do not, since a matrix is there to try others.
    """
    written = _written(axes, sections)
    taken: dict[str, dict[str, Any]] = {}
    for name, profile in profiles.items():
        taken[name] = {}
        for key, value in _implied(profile).items():
            values = written.get(key)
            if values is None:
                if key not in _LAYOUT or not any(size in axes.names for size in _LAYOUT):
                    taken[name][key] = value
            elif key not in _LAYOUT and value not in values:
                own = " and ".join(map(str, values))
                message = f"the profile has {key} {value}, and the matrix {own}"
                problems.add(("profiles", name), message, hint=f"leave one of them out, or make {key} an axis")
    dimensions = tuple(tuple(_with(row, taken) for row in rows) for rows in axes.dimensions)
    include = tuple(_with(row, taken) for row in axes.include)
    described = {name: _described(profile, taken[name]) for name, profile in profiles.items()}
    return replace(axes, dimensions=dimensions, include=include), described


def _with(row: Row, taken: Mapping[str, Mapping[str, Any]]) -> Row:
    return row._replace(values={**taken.get(row.values.get("args", ""), {}), **row.values})


def _implied(profile: Profile) -> dict[str, Any]:
    """Return the axes, and keys that are axes with dotted names, that a profile's flags set."""
    settings = {
        name: True if not words else words[0] if len(words) == 1 else list(words)
        for name, words in profile.owned.items()
        if words is not None and "." not in name
    }
    try:
        found, empty = (
            translate(TrainingRun(project="megatron-lm", settings=given, defaults_known=True)).keys
            for given in (settings, {})
        )
    except ValueError:
        return {}  # the flags of the layout alone do not fit; those of the matrix decide
    names = {*plain_axes(), *dotted()}
    set_by_flags = {key: value for key, value in found.items() if key not in _SIZES and empty.get(key) != value}
    plain = {key.removeprefix("packing_options."): value for key, value in set_by_flags.items()}
    return {key: value for key, value in plain.items() if key in names}


def _written(axes: Axes, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values that the matrix has for each axis and each key of its sections."""
    rows = [*(row for rows in axes.dimensions for row in rows), *axes.include]
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.values.items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    for section, values in sections.items():
        prefix = "" if section == "packing_options" else f"{section}."
        for key, value in values.items():
            found.setdefault(f"{prefix}{key}", [value])
    return found


def _described(profile: Profile, taken: Mapping[str, Any]) -> Profile:
    """Return the profile with the flags that are left out, by the reason."""
    left_out: dict[str, list[str]] = {}
    for name, words in profile.owned.items():
        if words is None or _is_taken(name, taken):
            continue
        left_out.setdefault(owner_of(name) or "", []).append(as_flag(name, words))
    return replace(profile, taken=dict(taken), left_out=left_out)


def _is_taken(name: str, taken: Collection[str]) -> bool:
    reason = owner_of(name) or ""
    return any(reason in (f"set it by the axis {key}", f"set {key} under {key.partition('.')[0]}:") for key in taken)
