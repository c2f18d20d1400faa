"""Collects everything that is wrong with a matrix file, each problem with its line and the key as the user wrote it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from harness.core.errors import InputError, Problem
from harness.core.setting import aliases_of
from harness.matrix.schema.section import dataclass_of, model_of, parts_of

KeyPath = tuple[str | int, ...]
T = TypeVar("T")

# pydantic error type -> message for the user; {ge}, {gt}, {expected} ... come from the error's context.
_MESSAGES = {
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "finite_number": "must be finite",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "too_long": "has {actual_length} items, more than {max_length}",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "literal_error": "unknown value",
    "missing": "is required",
}


@dataclass
class Problems:
    """`lines` is keyed by the key paths of the file; `spelled` maps a path of canonical names to the key as written."""

    file: str
    lines: Mapping[KeyPath, int]
    found: list[Problem] = field(default_factory=list)
    spelled: dict[KeyPath, str] = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # a name -> where it belongs
    removed: Mapping[str, str] = field(default_factory=dict)  # an axis or a dotted key of older files -> what to do

    def add(self, path: KeyPath, message: str, **details: str | None) -> None:
        """Add a problem at the line of a key, or of the nearest key above it."""
        self.found.append(self.problem(path, message, **details))

    def add_at(self, line: int | None, path: KeyPath, message: str, **details: str | None) -> None:
        """Add a problem at a known line, when `path` does not lead to it."""
        self.found.append(replace(self.problem(path, message, **details), line=line))

    def problem(self, path: KeyPath, message: str, **details: str | None) -> Problem:
        """Return a problem at `path`, with the line of the nearest key above it that has one."""
        written = self._written(path)
        return Problem(message=message, file=self.file, line=self._line(written), key=_dotted(written), **details)

    def line(self, path: KeyPath) -> int | None:
        """Return the line of a key, or of the nearest key above it that has one."""
        return self._line(self._written(path))

    def raise_any(self) -> None:
        """Raise InputError with all problems, by line, if there are any."""
        if self.found:
            raise InputError(sorted(self.found, key=lambda problem: problem.line or 0))

    def within(self, key: str) -> bool:
        """Return whether there is a problem at or below a key, so that what is there is not known whole."""
        return any(problem.key is not None and problem.key.startswith(key) for problem in self.found)

    def _line(self, written: KeyPath) -> int | None:
        return next((self.lines[written[:n]] for n in range(len(written), 0, -1) if written[:n] in self.lines), None)

    def _written(self, path: KeyPath) -> KeyPath:
        return tuple(self.spelled.get(path[: n + 1], part) for n, part in enumerate(path))

    def canonical(
        self, section: Any, aliases: Mapping[str, str], path: KeyPath, example: str | None = None
    ) -> dict[str, Any] | None:
        """Return the mapping with aliases and dashed names replaced; None (and a problem) if it is not a mapping."""
        if not isinstance(section, Mapping):
            self.add(path, "must be a mapping", found=shown(section), hint=example)
            return None
        result: dict[str, Any] = {}
        for written, value in section.items():
            if not isinstance(written, str):
                self.add((*path, str(written)), "keys must be text", found=shown(written))
                continue
            plain = written.replace("-", "_")
            name = aliases.get(plain, plain)
            if name in result:
                first = self.spelled.get((*path, name), name)
                self.add(
                    (*path, written),
                    f"given twice: {first!r} and {written!r} are the same setting",
                    hint="keep one of them",
                )
                continue
            result[name] = value
            if written != name:
                self.spelled[(*path, name)] = written
        return result

    def validate(self, kind: type[T], section: Any, path: KeyPath) -> T | None:
        """Return the section as `kind`, a declared dataclass or a pydantic model.

        None after adding all its problems.
        """
        aliases = {} if issubclass(kind, BaseModel) else aliases_of(kind)
        names = list(model_of(kind).model_fields)
        example = f"e.g. {path[-1]}: {{{names[0]}: ...}}" if path and names else None
        values = self.canonical(section, aliases, path, example)
        if values is None:
            return None
        inner = {name: part for name, part in parts_of(kind).items() if values.get(name) is not None}
        parts = {name: self.validate(part, values.pop(name), (*path, name)) for name, part in inner.items()}
        model = model_of(kind)
        try:
            checked: Any = model.model_validate(values)
        except ValidationError as error:
            self.add_validation(error, path, model.model_fields, aliases, parts=parts_of(kind))
            return None
        if any(part is None for part in parts.values()):
            return None
        return checked if model is kind else dataclass_of(kind, checked, parts)

    def add_validation(
        self,
        error: ValidationError,
        path: KeyPath,
        known: Iterable[str] = (),
        aliases: Iterable[str] = (),
        *,
        at_value: bool = False,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        """Add problems from pydantic's errors. `at_value`: `path` is the place itself, not the section above it."""
        for detail in error.errors(include_url=False):
            where = path if at_value else (*path, *(part for part in detail["loc"] if part != "[key]"))
            context = detail.get("ctx", {})
            if detail["type"] == "extra_forbidden":
                self.add_unknown(where, known, aliases, parts=parts)
                continue
            template = _MESSAGES.get(detail["type"])
            message = template.format(**context) if template else detail["msg"].removeprefix("Value error, ")
            self.add(
                where,
                message,
                found=None if detail["type"] == "missing" else shown(detail["input"]),
                allowed=context.get("expected"),
                hint=_nearest(detail["input"], f"{message} {context.get('expected', '')}"),
            )

    def add_unknown(
        self,
        path: KeyPath,
        known: Iterable[str],
        aliases: Iterable[str] = (),
        hint: str | None = None,
        parts: Mapping[str, Any] | None = None,
    ) -> None:
        """Add an unknown key, with a hint: what took its place, where it belongs, or the nearest name.

        `parts`: sections in this one.
        """
        if instead := self.removed.get(str(path[-1]) if path[0] == "matrix" else _dotted(path) or ""):
            self.add(path, "was removed", hint=instead)
            return
        names = list(known)
        name = str(path[-1]).replace("-", "_")
        choices = [*names, *aliases]
        near = [name.lower()] if name.lower() in choices else difflib.get_close_matches(name, choices, n=1)
        near = [f"{part}.{name}" for part, kind in (parts or {}).items() if name in _names_of(kind)] or near
        guess = self.elsewhere.get(name) or (f"did you mean {near[0]!r}?" if near else None)
        self.add(path, "unknown key", allowed=", ".join(names), hint=hint or guess)


def _names_of(kind: Any) -> set[str]:
    return {*model_of(kind).model_fields, *aliases_of(kind)}


def _nearest(value: Any, allowed: str) -> str | None:
    """Return e.g. "did you mean 'reference'?", from a message that lists the values."""
    if not isinstance(value, str) or not allowed.startswith(("must be one of", "unknown value")):
        return None
    names = re.findall(r"[\w.-]+", allowed.removeprefix("must be one of").removeprefix("unknown value"))
    near = difflib.get_close_matches(value, names, n=1)
    return f"did you mean {near[0]!r}?" if near else None


def shown(value: Any) -> str:
    """Return a value as the user could have written it, cut to 60 characters."""
    text = "nothing" if value is None else repr(value)
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= 60 else text[:57] + "..."


def _dotted(path: KeyPath) -> str | None:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or None


def refuse_secrets(values: Any, secrets: Collection[str], *, file: str, lines: Mapping[KeyPath, int]) -> None:
    """Raise InputError for every text of a file with one of `secrets` in it: others can read what a run writes."""
    problems = Problems(file, lines)
    if secrets:
        _add_secrets(values, secrets, problems, ())
    problems.raise_any()


def _add_secrets(value: Any, secrets: Collection[str], problems: Problems, path: KeyPath) -> None:
    if isinstance(value, str) and any(secret in value for secret in secrets):
        hint = "an environment variable with a secret name has this value"
        problems.add(path, "holds a secret; others can read run directories", hint=hint)
    items = value.items() if isinstance(value, Mapping) else enumerate(value if isinstance(value, list) else ())
    for key, member in items:
        _add_secrets(key, secrets, problems, (*path, key))
        _add_secrets(member, secrets, problems, (*path, key))
