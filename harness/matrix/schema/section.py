"""Pydantic models of the sections of matrix and profile files, made from the dataclasses of the sections."""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Optional, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, create_model

from harness.core.setting import Key, Limits, keys_of

_NO_LIMITS = Limits()
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
T = TypeVar("T")


class Section(BaseModel):
    """Base of all sections. Unknown keys and silent conversions ("2" for 2, 1 for true) are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def one_of(*names: str) -> AfterValidator:
    """Validate that a value is one of `names`."""
    return among(names)


def among(names: Collection[str]) -> AfterValidator:
    """Validate that a value is among `names`, which may grow when plug-ins are loaded."""

    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    return AfterValidator(check)


def model_of(kind: type[Any]) -> type[Section]:
    """Return the model that validates a section.

    `kind` is the dataclass that the section becomes, or already a model.
    """
    any_kind: Any = kind
    return kind if issubclass(kind, Section) else _model_of(any_kind)


@cache
def _model_of(kind: Any) -> type[Section]:
    name = re.sub("(Config|Profile)?$", "Section", kind.__name__, count=1)
    return model_with(name, kind.__doc__ or "", keys_of(kind).values())


def model_with(name: str, doc: str, keys: Iterable[Key], **more: Any) -> type[Section]:
    """Return a model with a field per declared key. `more`: fields before them, in the form that create_model takes."""
    fields = more | {key.name: (_field_type(key), _field(key)) for key in keys}
    model: type[Section] = create_model(name, __base__=Section, __doc__=doc, __module__=__name__, **fields)
    return model


def dataclass_of(kind: type[T], checked: Section, parts: Mapping[str, Any] | None = None) -> T:
    """Return an instance of `kind` with the checked values.

    A key that the file leaves out has the dataclass's default.
    """
    values = {name: _frozen(getattr(checked, name)) for name in type(checked).model_fields} | dict(parts or {})
    keys = keys_of(kind)
    return kind(
        **{name: value for name, value in values.items() if value is not None or not keys[name].setting.optional}
    )


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def parts_of(kind: type[Any]) -> dict[str, Any]:
    """Return the keys whose values are nested sections, e.g. `moe` of a model."""
    keys = {} if issubclass(kind, Section) else keys_of(kind)
    nested = {name: next(filter(dataclasses.is_dataclass, union_of(key.type)), None) for name, key in keys.items()}
    return {name: part for name, part in nested.items() if part}


def without_links(doc: str) -> str:
    """Return the description of a key without its Markdown links."""
    return _LINK.sub(r"\1", doc)


def _field(key: Key) -> Any:
    setting = key.setting
    if setting.required or key.default is dataclasses.MISSING:
        return Field(description=without_links(setting.doc))
    default = None if setting.auto or setting.optional else key.default
    return Field(default=default, description=without_links(setting.doc))


def _field_type(key: Key) -> Any:
    setting = key.setting
    notes: list[Any] = []
    kind = _type(key.type, setting)
    if setting.auto or setting.optional:
        kind = Optional[kind]  # noqa: UP045 - the type is a variable
    if setting.read:
        notes.append(BeforeValidator(setting.read))
    if setting.auto:
        notes += [BeforeValidator(_auto_to_none), WithJsonSchema(_auto_schema(key))]
    if setting.written:
        notes.append(WithJsonSchema(dict(setting.written)))
    return Annotated[(kind, *notes)] if notes else kind


def _auto_to_none(value: Any) -> Any:
    return None if value == "auto" else value


def _auto_schema(key: Key) -> dict[str, Any]:
    if bool in union_of(key.type):
        return {"enum": [True, False, "auto"]}
    number = {"type": "integer", "minimum": key.setting.ge, "maximum": key.setting.le}
    return {"anyOf": [number, {"const": "auto"}]}


def union_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union; a tuple of the type itself for any other type."""
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _type(annotation: Any, limits: Limits = _NO_LIMITS) -> Any:
    """Return the type that pydantic validates for a declared type."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        limits = next((note for note in parts[1:] if isinstance(note, Limits)), limits)
        notes = [note for note in parts[1:] if not isinstance(note, Limits)]
        kind = _type(parts[0], limits)
        return Annotated[(kind, *notes)] if notes else kind
    if len(union_of(annotation)) > 1:
        return Union[tuple(part if part is type(None) else _type(part, limits) for part in parts)]  # noqa: UP007
    if dataclasses.is_dataclass(annotation):
        return model_of(annotation)  # type: ignore[arg-type]
    if origin is tuple:
        annotation = list[_type(parts[0])]  # type: ignore[misc]
    elif origin is dict:
        annotation = dict[_type(parts[0]), _type(parts[1])]  # type: ignore[misc]
    return Annotated[(annotation, *_notes(annotation, limits))]


def _notes(kind: Any, limits: Limits) -> list[Any]:
    names = ("ge", "gt", "le", "min_length", "max_length")
    facts: dict[str, Any] = {name: value for name in names if (value := getattr(limits, name)) is not None}
    facts |= {"allow_inf_nan": False} if kind is float else {}
    extra: dict[str, Any] = {"enum": [*limits.choices]} if limits.choices else {}
    extra |= {"pattern": limits.pattern} if limits.pattern else {}
    notes: list[Any] = [Field(**facts, json_schema_extra=extra or None)]
    notes += [among(limits.choices)] if limits.choices else []
    return notes + ([AfterValidator(limits.check)] if limits.check else [])
