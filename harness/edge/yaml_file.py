"""YAML files to plain values with line numbers, and back. The only importer of the YAML reader."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from harness.words.errors import InputError, Problem

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, kw_only=True)
class YamlFile:
    """Plain values (dict, list, str, int, float, bool, None, date) and the line (from 1) of every key and item."""

    file: str  # as the user named it
    values: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


def read(path: Path) -> YamlFile:
    """Read one YAML 1.2 document; InputError with file and line for anything that is not one."""
    file = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(Problem(message="no such file", file=file)) from None
    except UnicodeDecodeError as error:
        raise InputError(Problem(message=f"not a UTF-8 text file: {error.reason}", file=file)) from error
    except OSError as error:
        raise InputError(Problem(message=f"cannot be read: {error.strerror}", file=file)) from error
    try:
        values = _parser().load(text)
        lines: dict[KeyPath, int] = {}
        _collect_lines(_parser().compose(text), (), lines, ())
    except MarkedYAMLError as error:
        raise InputError(_syntax_problem(error, file)) from error
    except (YAMLError, ValueError) as error:  # ValueError: a date like 2026-99-99
        raise InputError(Problem(message=f"not valid YAML: {error}", file=file)) from error
    return YamlFile(file=file, values=values, lines=lines)


def dump(values: Any) -> str:
    """YAML text of plain values, keys in the order given."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.representer.ignore_aliases = lambda _: True
    stream = io.StringIO()
    writer.dump(values, stream)
    return stream.getvalue()


def _parser() -> YAML:
    return YAML(typ="safe", pure=True)


def _syntax_problem(error: MarkedYAMLError, file: str) -> Problem:
    """The reader's complaint in one line, at the place it complains about."""
    mark = error.problem_mark or error.context_mark
    what = str(error.problem or error.context or error).strip().splitlines()[0]
    where = f" {error.context}" if error.context and error.problem else ""
    return Problem(
        message=f"not valid YAML: {what}{where}",
        file=file,
        line=mark.line + 1 if mark is not None else None,
    )


def _collect_lines(node: Node | None, path: KeyPath, lines: dict[KeyPath, int], inside: tuple[int, ...]) -> None:
    """Line of every key and list item. `inside` holds the ids of the enclosing nodes, to stop at recursive anchors."""
    if node is None or isinstance(node, ScalarNode):
        return
    if id(node) in inside:
        raise YAMLError(f"an anchor contains itself (line {node.start_mark.line + 1})")
    inside = (*inside, id(node))
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if key.tag.endswith(":merge"):
                _collect_lines(value, path, lines, inside)
                continue
            lines[(*path, str(key.value))] = key.start_mark.line + 1
            _collect_lines(value, (*path, str(key.value)), lines, inside)
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _collect_lines(item, (*path, index), lines, inside)
