"""What upstream's parser or validation says of a configuration that it refuses: which arguments, and their values.

The harness chose the configuration, or `args` did, so a refusal says nothing about the code that would have run.

| refused by | recognised by |
|---|---|
| a parser, which prints and exits | a frame of argparse |
| parse_args, validate_args and all else in Megatron-LM's arguments.py | the file |
| the norms of latent attention, which need Transformer Engine without a low-rank query | the file |
| a configuration, e.g. TransformerConfig.__post_init__, ConfigContainer.validate | the method and its class |
| a configuration with other fields than those that it is given | the TypeError of its __init__ |
| validate_cfg and the like | the function |
"""

from __future__ import annotations

import ast
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from harness.core.upstream import CODE, deciding, frame_text, owner_of
from harness.node.recording.frames import checkout_roots, frames_of

_FILES = ("arguments.py", "argument_utils.py", "yaml_arguments.py", "mla_qk_norm_config.py")
_FUNCTIONS = re.compile(r"(parse|validate|check)_(\w+_)?(args|arguments|cfg|config)")
_METHODS = ("__post_init__", "validate", "finalize")
_CLASSES = re.compile(r"\w*(Config|ConfigContainer|Args|Arguments)")
_OTHER_FIELDS = re.compile(rf"(?P<name>{_CLASSES.pattern})\.__init__\(\) (got an unexpected|missing)")
_LONGEST = 80  # characters of a value


def words_of(error: BaseException) -> str:
    """What the exception says: its text, or what upstream's parser printed before it exited."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if _parser_ends(frame):
            return str(frame.f_locals.get("message", error))
    return str(error)


def refusal_of(error: BaseException) -> str:
    """The arguments that upstream refused, e.g. "upstream needs --lr, which is not set"; empty for other exceptions.

    Also empty if upstream's validation called the harness, e.g. a CPU stub, which raised.
    """
    if isinstance(error, TypeError) and (called := _OTHER_FIELDS.match(str(error))):
        return f"upstream's {called['name']} has other fields"
    if deciding(frames_of(error))[0] != CODE:
        return ""
    steps = list(traceback.walk_tb(error.__traceback__))
    first = next((number for number, (frame, _) in enumerate(steps) if _validates(frame)), None)
    if first is None:
        return ""
    for frame, line in reversed(steps[first:]):
        if values := dict(_named(frame, line)):
            return _sentence(values)
    return "upstream refuses the configuration"


def _validates(frame: FrameType) -> bool:
    code = frame.f_code
    if _parser_ends(frame):
        return True
    if owner_of(frame_text(code.co_filename, 0, code.co_name, sys.path, checkout_roots())) != CODE:
        return False
    if Path(code.co_filename).name in _FILES or _FUNCTIONS.fullmatch(code.co_name):
        return True
    return code.co_name in _METHODS and bool(_CLASSES.fullmatch(type(frame.f_locals.get("self")).__name__))


def _parser_ends(frame: FrameType) -> bool:
    return frame.f_code.co_name == "error" and Path(frame.f_code.co_filename).name == "argparse.py"


def _named(frame: FrameType, line: int) -> Iterator[tuple[str, Any]]:
    """(argument or field, value) of each one that the condition or statement at a line reads, in its order."""
    try:
        tree = ast.parse(Path(frame.f_code.co_filename).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    read = [node for node in ast.walk(_condition(tree, line)) if isinstance(node, ast.Attribute)]
    for node in sorted(read, key=lambda node: (node.lineno, node.col_offset)):
        root, *path = ast.unparse(node).split(".")
        value = frame.f_locals.get(root)
        if not (isinstance(value, Namespace) or is_dataclass(value)):
            continue
        flag = f"--{'.'.join(path).replace('_', '-')}" if isinstance(value, Namespace) else ".".join(path)
        for name in path:
            value = vars(value).get(name, ...) if hasattr(value, "__dict__") else ...
        if value is None or isinstance(value, (bool, int, float, str)):
            yield flag, value


def _condition(tree: ast.AST, line: int) -> ast.AST:
    """What decided at a line: the test of an assertion, or of the `if` around a `raise`; else the statement."""
    around: list[ast.AST] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    around.sort(key=lambda node: getattr(node, "lineno", 0))
    tests = [node for node in around if isinstance(node, (ast.Assert, ast.If))]
    if tests and tests[-1].lineno == tests[-1].end_lineno:  # `if` and its body on one line
        return tests[-1]
    if around and isinstance(around[-1], (ast.Raise, ast.Assert, ast.If)) and tests:
        return tests[-1].test
    return around[-1] if around else tree


def _sentence(values: dict[str, Any]) -> str:
    unset = [name for name, value in values.items() if value is None]
    others = ", ".join(f"{name} {str(value)[:_LONGEST]}" for name, value in values.items() if value is not None)
    if not unset:
        return f"upstream refuses {others}"
    needed = f"upstream needs {' or '.join(unset)}, which {'is' if len(unset) == 1 else 'are'} not set"
    return f"{needed}, with {others}" if others else needed
