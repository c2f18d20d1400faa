"""YAML files to plain values with line numbers, and back. Only this file imports the YAML reader.

Limits are checked before values are built: size, number of nodes (an alias counts as all that it repeats), their
nesting, and the length of every text and number. The reader needs about 0.1 ms per node.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import ScalarEvent
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from harness.core.errors import InputError, Problem
from harness.infra.files import MIB, read_text

KeyPath = tuple[str | int, ...]
INVALID = "not valid YAML"
MAX_BYTES = MIB
MAX_NODES = 20_000  # keys, values and items
MAX_DEPTH = 50
MAX_CHARACTERS = 10_000  # of one text
MAX_DIGITS = 40  # of one number
# Of these the reader notices a line later that the end is missing; the mistake is where they begin.
_OPENED = ("while parsing a flow", "while scanning a simple key", "while scanning a quoted scalar")
_NUMBERS = (":int", ":float")
_ODD_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


@dataclass(frozen=True, kw_only=True)
class YamlFile:
    """Plain values (dict, list, str, int, float, bool, None, date) and the line (from 1) of every key and item."""

    file: str  # as the user named it
    values: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)


def read(path: Path) -> YamlFile:
    """Read one YAML 1.2 document; InputError with file and line for anything else, or beyond a limit."""
    return parsed(read_text(path, MAX_BYTES), str(path))


def parsed(text: str, file: str) -> YamlFile:
    """Return the same from a text; `file`: what errors name."""
    lines: dict[KeyPath, int] = {}
    reader = YAML(typ="safe", pure=True)
    reader.Composer = _BoundedComposer
    reader.Constructor = _PlacingConstructor
    try:
        constructor, _ = reader.get_constructor_parser(text)
        node = constructor.composer.get_single_node()
        _count(node, {}, ())
        _collect_lines(node, (), lines)
        values = None if node is None else constructor.construct_document(node)
    except MarkedYAMLError as error:
        raise InputError(_marked_problem(error, file)) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"{INVALID}: it contains the character U+{error.character:04X}, which YAML does not allow"
        raise InputError(Problem(message=message, file=file, line=line)) from error
    except YAMLError as error:
        raise InputError(Problem(message=f"{INVALID}: {error}", file=file)) from error
    except _ODD_ERRORS as error:  # of the reader, e.g. for a directive without a document
        line = min(reader.reader.line + 1, len(text.splitlines()))
        raise InputError(Problem(message=f"{INVALID} here, or just before", file=file, line=line)) from error
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


class _OutOfBoundsError(MarkedYAMLError):
    """The file is YAML, but exceeds a limit. `context`: what is allowed."""

    def __init__(self, problem: str, allowed: str, mark: Any) -> None:
        super().__init__(context=allowed, problem=problem, problem_mark=mark)


class _BoundedComposer(Composer):
    """Stops at the first node beyond a limit, before values are built."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self.warn_double_anchors = False  # YAML allows an anchor to be redefined
        self._nodes = self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.parser.peek_event()
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _OutOfBoundsError("too many values", f"{MAX_NODES:,} keys, values and items", event.start_mark)
        if self._depth >= MAX_DEPTH:
            raise _OutOfBoundsError("nested too deeply", f"{MAX_DEPTH} levels", event.start_mark)
        if isinstance(event, ScalarEvent):
            _check_text(event)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(node, ScalarNode) and str(node.tag).endswith(_NUMBERS) and len(node.value) > MAX_DIGITS:
            raise _OutOfBoundsError(
                f"a number of {len(node.value)} characters", f"{MAX_DIGITS} characters", node.start_mark
            )
        return node


def _check_text(event: ScalarEvent) -> None:
    if len(event.value) > MAX_CHARACTERS:
        found = f"a text of {len(event.value):,} characters"
        raise _OutOfBoundsError(found, f"{MAX_CHARACTERS:,} characters", event.start_mark)
    odd = next((char for char in event.value if char == "\0" or "\ud800" <= char <= "\udfff"), None)
    if odd is not None:  # from an escape: no file, command or report can contain it
        problem = f"a text with U+{ord(odd):04X}, which is NUL or half of a surrogate pair"
        raise MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


class _PlacingConstructor(SafeConstructor):
    """Adds the position to the error for a value that cannot be built, e.g. the date 2026-99-99."""

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except _ODD_ERRORS as error:
            raise MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from error


def _marked_problem(error: MarkedYAMLError, file: str) -> Problem:
    """Return the reader's error in one line, with its position."""
    mark = error.problem_mark or error.context_mark
    if error.context_mark is not None and str(error.context).startswith(_OPENED):
        mark = error.context_mark
    line = mark.line + 1 if mark is not None else None
    if isinstance(error, _OutOfBoundsError):
        return Problem(message=str(error.problem), file=file, line=line, allowed=f"at most {error.context}")
    what = str(error.problem or error.context or error).strip().splitlines()[0]
    where = f" {error.context}" if error.context and error.problem else ""
    return Problem(message=f"{INVALID}: {what}{where}", file=file, line=line)


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, SequenceNode) else []


def _count(node: Node | None, sizes: dict[int, int], inside: tuple[int, ...]) -> int:
    """Return the number of nodes of this subtree, aliases expanded. `inside`: ids of its ancestors."""
    if node is None:
        return 0
    if id(node) in inside:
        raise MarkedYAMLError(problem="an anchor contains itself", problem_mark=node.start_mark)
    if id(node) not in sizes:
        sizes[id(node)] = 1 + sum(_count(child, sizes, (*inside, id(node))) for child in _children(node))
        if sizes[id(node)] > MAX_NODES:
            allowed = f"{MAX_NODES:,} keys, values and items, aliases written out"
            raise _OutOfBoundsError("too many values", allowed, node.start_mark)
    return sizes[id(node)]


def _collect_lines(node: Node | None, path: KeyPath, lines: dict[KeyPath, int]) -> None:
    """Line of every key and list item. MarkedYAMLError for a key that is a list or a mapping."""
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if not isinstance(key, ScalarNode):  # ruamel accepts some of them, and fails on others with a TypeError
                problem = "a key must be one value, not a list or a mapping"
                raise MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if str(key.tag).endswith(":merge"):
                _collect_lines(value, path, lines)
                continue
            lines[(*path, str(key.value))] = key.start_mark.line + 1
            _collect_lines(value, (*path, str(key.value)), lines)
    elif isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*path, index)] = item.start_mark.line + 1
            _collect_lines(item, (*path, index), lines)
