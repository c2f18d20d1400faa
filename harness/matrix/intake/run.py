"""A training run as its owner has it, and what becomes of it: keys of a matrix, arguments, and what is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """The settings of a training run, read from a command, a log or a configuration file.

    `settings` maps names as upstream's users write them, with underscores and with dots between the sections of a
    configuration, to a bool, a number, a text or a list of these.
    """

    project: str  # whose settings these are, a key of PROJECTS
    settings: Mapping[str, Any]
    source: str = ""  # what they were read from, e.g. "the command in train.sh"
    script: str = ""  # the training script or module, as written; empty where the source does not say
    ranks: int | None = None  # world size, where the launcher in front of the script says it
    hidden: tuple[str, ...] = ()  # names of settings whose values only a shell knows
    defaults_known: bool = False  # `settings` also holds what its owner did not set


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A setting that the matrix does not have, as written, and why."""

    setting: str
    reason: str


@dataclass(kw_only=True)
class Translation:
    """What a training run is in the words of a matrix, at its full size.

    `keys` are axes (`tp`), keys of sections (`model.moe.topk`) and packing options (`packing_options.metadata`).
    """

    project: str
    trainer: str
    packing: str  # the data path that the run's own switch chooses; empty if the run does not pack
    documents: str  # the built-in mix that this data path takes in every layout
    not_packed: str = ""  # why `packing` is empty, and which switch would change it
    keys: dict[str, Any] = field(default_factory=dict)
    args: dict[str, tuple[str, ...]] = field(default_factory=dict)  # passed on to upstream's trainer as they are
    same: list[str] = field(default_factory=list)  # settings that say what every cell has
    left_out: list[LeftOut] = field(default_factory=list)

    def leave_out(self, setting: str, reason: str) -> None:
        self.left_out.append(LeftOut(setting=setting, reason=reason))


class Settings:
    """The settings of a run, each taken once; the rest is left over."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)

    def take(self, name: str, default: Any = None) -> Any:
        """Return a setting and remove it; `default` where the run does not have it, or has None."""
        value = self._settings.pop(name, None)
        return default if value is None else value

    def size(self, name: str, default: int = 1) -> int:
        """Return a setting that is a whole number.

        ValueError if it is none.
        """
        value = self.take(name, default)
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if number != number // 1:
            raise ValueError(f"{name} is {value!r}, and must be a whole number")
        return int(number)

    def on(self, name: str, default: bool = False) -> bool:
        """Return whether a switch is on."""
        return is_on(self.take(name, default))

    def __contains__(self, name: str) -> bool:
        return self._settings.get(name) is not None

    def take_section(self, prefix: str) -> dict[str, Any]:
        """Return the settings whose names begin with `prefix`, by the rest of their names, and remove them.

        Those of sections in it stay.
        """
        names = [name for name in self._settings if name.startswith(prefix) and "." not in name[len(prefix) :]]
        return {name[len(prefix) :]: self._settings.pop(name) for name in names}

    def drop(self, prefix: str) -> None:
        """Remove the settings whose names begin with `prefix`, those of sections in it too."""
        self._settings = {name: value for name, value in self._settings.items() if not name.startswith(prefix)}

    def left(self) -> Iterator[tuple[str, Any]]:
        """Yield the settings that were not taken, without those that are None."""
        yield from ((name, value) for name, value in self._settings.items() if value is not None)


def is_on(value: Any) -> bool:
    """Return whether the value of a switch says that it is on."""
    return str(value).lower() not in ("false", "0", "none", "null", "off", "")


def as_words(value: Any) -> tuple[str, ...]:
    """Return a setting as the words of an argument; none for a switch."""
    if value is True:
        return ()
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)
