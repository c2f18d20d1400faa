"""Parses `args` and `profiles` of a matrix file, and values of axes like `args.clip-grad`."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.cell.arguments import OF_OPTIMIZER, PASSED_ON, PREFIX
from harness.core.stack import safe_name
from harness.plan.matrix.owned_arguments import missing_in_models, owner_of
from harness.plan.matrix.problems import KeyPath, Problems, shown

Words = tuple[str, ...]
Layer = dict[str, Words | None]  # name -> words, none for a switch; None leaves the argument out

MOST_ARGUMENTS = 200
_MOST_CHARACTERS = 1_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,99}(\.[a-z][a-z0-9_]{0,99}){1,4}")  # of Megatron-Bridge's ConfigContainer
_POSITIVE = re.compile(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_NUMBER = re.compile(r"-\.?\d")
_HOW = "a number, a text, a list of them, true for a switch, or null to leave it out"


@dataclass(frozen=True)
class Profile:
    """Arguments of a run that a user pasted."""

    layer: Layer
    left_out: tuple[str, ...] = ()  # flags of those that the matrix sets itself
    owned: Layer = field(default_factory=dict)  # the same, with their values


def words_of(value: Any) -> Words | None:
    """Words of a value in a matrix file; None for null and false. ValueError for anything that no argument can have."""
    if value is None or value is False:
        return None
    if value is True:
        return ()
    items = value if isinstance(value, list) else [value]
    if not items or any(isinstance(item, bool) or not isinstance(item, (int, float, str)) for item in items):
        raise ValueError(f"{shown(value)} is not a value of an argument; allowed: {_HOW}")
    return tuple(_word(str(item)) for item in items)


def _checked(name: str, words: Words | None) -> Words | None:
    """The words; ValueError unless an argument that the harness reads too is one number, or one of its values."""
    if words is not None and name in PASSED_ON and words not in [(value,) for value in PASSED_ON[name]]:
        raise ValueError(f"{shown(' '.join(words))} is not one of {', '.join(PASSED_ON[name])}")
    if words is None or name not in OF_OPTIMIZER:
        return words
    if len(words) != 1 or not _POSITIVE.fullmatch(words[0]) or not math.isfinite(float(words[0])):
        raise ValueError(f"{shown(' '.join(words))} is not one finite number of at least 0")
    return words


def _word(text: str) -> str:
    if not text or not text.isprintable() or len(text) > _MOST_CHARACTERS or text.startswith("--"):
        what = "printable characters, at least one and not two dashes first"
        raise ValueError(f"{shown(text)} is not a value of an argument; allowed: up to {_MOST_CHARACTERS} {what}")
    return text


def read_flags(text: str) -> Layer:
    """A pasted command line, with or without the command in front. ValueError if it is not one."""
    if "$" in text or "`" in text:
        raise ValueError("has a shell variable or command; write its value")
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise ValueError(f"is not a command line: {error}") from error
    script = next((index for index, word in enumerate(words) if word.endswith(".py")), -1)
    layer: Layer = {}
    name = ""
    for word in words[script + 1 :]:
        if word.startswith("--"):
            name, joined, value = word[2:].replace("-", "_").partition("=")
            if not _NAME.fullmatch(name):
                raise ValueError(f"{shown(word)} is not an argument")
            layer[name] = (_word(value),) if joined else ()
        elif not name or (word.startswith("-") and not _NUMBER.match(word)):
            allowed = "--name, --name value, --name=value"
            raise ValueError(f"{shown(word)} does not belong to an argument; allowed: {allowed}")
        else:
            layer[name] = (*(layer[name] or ()), _word(word))
    return layer


def parse_layer(section: Any, path: KeyPath, problems: Problems) -> Layer:
    """Arguments as a mapping or as a command line; everything wrong with them is added to `problems`."""
    if isinstance(section, str):
        try:
            layer = read_flags(section)
        except ValueError as error:
            problems.add(path, str(error))
            return {}
        for name, words in layer.items():
            parse_words(name, list(words or ()) or True, path, problems)
    else:
        values = problems.canonical(section, {}, path) or {}
        layer = {}
        for name, value in values.items():
            if (words := parse_words(name, value, (*path, name), problems)) is not INVALID:
                layer[name] = words
    if len(layer) > MOST_ARGUMENTS:
        problems.add(path, "too many arguments", found=str(len(layer)), allowed=f"at most {MOST_ARGUMENTS}")
    return layer


def parse_arguments(section: Any, problems: Problems) -> Layer:
    """The section `args`, for every cell."""
    layer = parse_layer(section, ("args",), problems)
    for name in layer:
        _check_owner(name, ("args", name), problems)
    return layer


def parse_profiles(section: Any, problems: Problems) -> dict[str, Profile]:
    """The section `profiles`. Arguments that the matrix sets itself are left out of a profile."""
    path: KeyPath = ("profiles",)
    if not isinstance(section, Mapping):
        problems.add(path, "must be a mapping", found=shown(section))
        return {}
    found: dict[str, Profile] = {}
    for name, item in section.items():
        if not item:
            problems.add((*path, str(name)), "is empty", hint="use null on the axis args")
        try:
            layer = parse_layer(item, (*path, safe_name(name)), problems)
        except (TypeError, ValueError) as error:
            problems.add((*path, str(name)), str(error))
            continue
        owned = {key: words for key, words in layer.items() if owner_of(key)}
        kept = {key: words for key, words in layer.items() if key not in owned}
        found[name] = Profile(kept, tuple(map(_as_passed, owned)), owned)
    return found


def check_profiles(profiles: Mapping[str, Profile], models: Iterable[Any], problems: Problems) -> None:
    """Adds a problem for what is left out of a profile though no model has it, and for profiles without effect.

    `models`: the ModelConfigs of the matrix.
    """
    effects: dict[tuple[tuple[str, Words | None], ...], str] = {}
    for name, profile in profiles.items():
        path: KeyPath = ("profiles", name)
        for key, words in profile.owned.items():
            if words is not None and (reason := missing_in_models(key, words, profile.owned, models)):
                flag = " ".join((_as_passed(key), *words))
                problems.add(path, f"{flag} cannot be left out, since it defines another model", hint=reason)
        effect = tuple(sorted(profile.layer.items()))
        if not effect and profile.owned:
            problems.add(path, "has no effect: the matrix sets everything in it", hint="use null on the axis args")
        elif effect and effect in effects:
            problems.add(path, f"has the same effect as profile {effects[effect]}", hint="one of them is enough")
        effects.setdefault(effect, name)


def parse_axis_value(axis: str, value: Any, path: KeyPath, problems: Problems) -> Any:
    """The words of one value of an axis like "args.clip_grad"; INVALID after adding its problem."""
    name = axis.removeprefix(PREFIX)
    _check_owner(name, path, problems)
    return parse_words(name, value, path, problems)


def _check_owner(name: str, path: KeyPath, problems: Problems) -> None:
    if reason := owner_of(name):
        problems.add(path, f"{_as_passed(name)} cannot be passed on", hint=reason)


def _as_passed(name: str) -> str:
    """The name as upstream's users write it."""
    return name if "." in name else f"--{name.replace('_', '-')}"


INVALID: Any = object()  # in place of an invalid value, whose problem was added


def parse_words(name: str, value: Any, path: KeyPath, problems: Problems) -> Any:
    """The words of one argument; INVALID after adding its problem."""
    if not _NAME.fullmatch(name) and not _FIELD.fullmatch(name):
        problems.add(path, "is not the name of an argument", hint="write it without the dashes in front")
        return INVALID
    if isinstance(value, bool) and "." in name:
        return (str(value).lower(),)  # a field is true or false, not a switch
    try:
        return _checked(name, words_of(value))
    except ValueError as error:
        problems.add(path, str(error))
        return INVALID


def as_written(layer: Mapping[str, Words | None]) -> dict[str, Any]:
    """The layer as in a matrix file."""
    return {name: _written(words) for name, words in layer.items()}


def _written(words: Words | None) -> Any:
    if not words:
        return None if words is None else True
    return words[0] if len(words) == 1 else list(words)
