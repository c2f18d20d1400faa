"""Configuration files of training runs: NeMo-RL's with their `defaults`, and the files that a script sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, Problem
from harness.infra.files import MIB, read_text
from harness.inputs import yaml_file
from harness.matrix.intake.configuration import merged

_MAX_DEPTH = 20  # of defaults
_MAX_BYTES = MIB
_SOURCED = re.compile(r"(?m)^[ \t]*(?:source|\.)[ \t]+[\"']?(?:\$\{?\w+\}?/)?([\w./-]+\.sh)[\"']?[ \t]*$")


def found(name: str, beside: Path) -> Path | None:
    """Return the file of this name: from the current folder, from `beside` or from a folder above it."""
    if not name:
        return None
    folders = (Path(), beside, *beside.resolve().parents)
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def load(file: Path) -> dict[str, Any]:
    """Return the values of a YAML file, with those that its `defaults` names merged under them.

    InputError for a file that cannot be read, or that names itself.
    """
    values = yaml_file.read(file).values
    if not isinstance(values, dict):
        raise InputError(Problem(message="is not a mapping", file=str(file), key="--from"))
    return with_defaults(values, file, (file.resolve(),))


def with_defaults(values: Mapping[str, Any], file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the values, with those of the files that `defaults` names, relative to `file`, merged under them.

    Hydra's lists, which name groups and not files, stay as they are.
    """
    named = values.get("defaults")
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) and name.endswith(".yaml") for name in names):
        return dict(values)
    base: dict[str, Any] = {}
    for name in names:
        other = file.parent / name
        if not other.is_file() or other.resolve() in above or len(above) > _MAX_DEPTH:
            why = "is one of the files above it" if other.resolve() in above else "does not exist"
            raise InputError(Problem(message=f"its defaults name {name}, which {why}", file=str(file), key="--from"))
        below = yaml_file.read(other).values
        base = merged(base, with_defaults(below if isinstance(below, dict) else {}, other, (*above, other.resolve())))
    return merged(base, {name: value for name, value in values.items() if name != "defaults"})


def with_sourced(text: str, beside: Path) -> str:
    """Return a script with the text of the files that it sources in their places, as far as they are found.

    `$DIR/x.sh` is looked for from the script's folder, and from those above it.
    """

    def text_of(line: re.Match[str]) -> str:
        file = found(line[1], beside)
        return read_text(file, _MAX_BYTES) if file else line[0]

    return _SOURCED.sub(text_of, text)
