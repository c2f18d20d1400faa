"""Puts a setting of a training run under the key that a matrix has for it, or says why there is none."""

from __future__ import annotations

from typing import Any, get_args

from harness.core.cell.axes import SECTIONS, axes, dotted
from harness.core.setting import Key, keys_of
from harness.features.experts.config import FLEX
from harness.matrix.arguments import key_of, owner_of
from harness.matrix.intake.run import Translation, as_words, is_on
from harness.matrix.schema.sections import MODEL_PARTS

_OPTIONS = "packing_options."
# Keys with a value that runs have and cells cannot -> why, and what is tested instead.
_INSTEAD = {
    ("model.moe.dispatcher", FLEX): "its kernels need a GPU; dispatcher alltoall, which sends the same tokens, is "
    "tested instead",
}


def keep(result: Translation, name: str, value: Any, written: str) -> None:
    """Set the key of upstream's `name` to the value; leave the setting out if no key has such a value.

    `written`: the setting as its owner wrote it.
    """
    key = key_of(name.rpartition(".")[2])
    declared = declaration(key) if key else None
    if key is None or declared is None:
        result.leave_out(written, owner_of(name) or "the harness has no key for it")
        return
    try:
        read = as_declared(declared, value)
    except ValueError as error:
        result.leave_out(written, f"{key}: {error}")
        return
    if reason := _INSTEAD.get((key, read)):
        result.leave_out(written, reason)
    else:
        result.keys[full_name(key)] = read


def full_name(key: str) -> str:
    """Return the key as a Translation has it: packing options with their section in front."""
    return key if key not in axes() or not axes()[key].path.startswith("options.") else f"{_OPTIONS}{key}"


def declaration(key: str) -> Key | None:
    """Return the declaration of an axis, a packing option or a key such as `model.moe.topk`; None if there is none."""
    name = key.removeprefix(_OPTIONS)
    if declared := axes().get(name) or dotted().get(name):
        return declared
    section, _, rest = name.partition(".")
    part, _, field = rest.partition(".")
    kind = MODEL_PARTS.get(part) if section in SECTIONS else None
    return keys_of(kind).get(field) if kind else None


def as_declared(declared: Key, value: Any) -> Any:
    """Return the value in the type of the key.

    ValueError if the key cannot have it; the message says which values it has.
    """
    kinds = [kind for kind in get_args(declared.type) if kind is not type(None)] or [declared.type]
    if declared.setting.read and str in kinds:
        return declared.setting.read([int(word) for word in value] if isinstance(value, list) else value)
    word = as_words(value)[0] if as_words(value) else "true"
    if bool in kinds:
        return is_on(value)
    if declared.setting.choices:
        if word not in declared.setting.choices:
            raise ValueError(f"{word} is none of {', '.join(declared.setting.choices)}")
        return word
    if str in kinds:
        return word
    try:
        number = float(word)
    except ValueError as error:
        raise ValueError(f"{word} is not a number") from error
    if int in kinds and float not in kinds:
        if number != int(number):
            raise ValueError(f"{word} is not a whole number")
        return int(number)
    return number
