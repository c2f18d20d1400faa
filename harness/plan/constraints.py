"""Expressions over axis names, e.g. `tp * pp * cp <= 8` or `packing != "unpacked" or cp == 1`.

Python syntax, but only names, constants, arithmetic, comparisons, and / or / not, in, min and max: the tree is
checked node by node before it is compiled, and it runs without builtins.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}
_GLOBALS: dict[str, Any] = {"__builtins__": {}, **_FUNCTIONS}
TEXT_NAMES = frozenset({"packing", "dtype", "attention", "device"})


class ConstraintError(ValueError):
    """What is wrong with an expression, and the column (from 1) where; 0 when it shows only in evaluation."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(f"column {column}: {message}" if column else message)


@dataclass(frozen=True)
class Constraint:
    text: str
    code: CodeType

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether a combination satisfies it; `values` has every name the constraint was compiled for."""
        try:
            result = eval(self.code, _GLOBALS, values)
        except (ArithmeticError, TypeError) as error:
            raise ConstraintError(f"{self.text!r} cannot be evaluated: {error}") from error
        if not isinstance(result, bool):
            raise ConstraintError(f"{self.text!r} is not a condition: it gives {result!r}, not true or false")
        return result


def compile_constraint(text: str, names: Iterable[str]) -> Constraint:
    """The compiled expression; ConstraintError with the column of the first thing that is not allowed.

    `names` are plain ("tp") or dotted ("train.seq_length").
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ConstraintError(f"not an expression: {error.msg}", error.offset or 1) from None
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"not an expression: {error}", 1) from None
    _check(tree.body, frozenset(names))
    return Constraint(text.strip(), compile(tree, "<constraint>", "eval"))


def _check(node: ast.expr, names: frozenset[str]) -> None:
    if isinstance(node, (ast.Name, ast.Attribute)):
        _check_name(node, names)
    elif isinstance(node, ast.Constant):
        _check_constant(node)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        for operand in (node.left, node.right):
            # Text times a number is legal Python that can ask for gigabytes.
            if not _is_number(operand):
                raise ConstraintError("arithmetic needs numbers", operand.col_offset + 1)
            _check(operand, names)
    else:
        for part in _parts(node):
            _check(part, names)


def _parts(node: ast.expr) -> list[ast.expr]:
    """The operands of an allowed compound node."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        return [node.operand]
    if isinstance(node, ast.Compare) and all(isinstance(op, _COMPARISONS) for op in node.ops):
        return [node.left, *node.comparators]
    if isinstance(node, (ast.Tuple, ast.List)):
        return node.elts
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        if node.args and not node.keywords:
            return node.args
        raise ConstraintError(f"{node.func.id}() takes values, e.g. {node.func.id}(tp, cp)", node.col_offset + 1)
    allowed = "allowed: axis names, constants, + - * / // %, comparisons, and, or, not, in, min(), max()"
    raise ConstraintError(f"{ast.unparse(node)!r} is not allowed here ({allowed})", node.col_offset + 1)


def _check_name(node: ast.Name | ast.Attribute, names: frozenset[str]) -> None:
    name = ast.unparse(node)
    if name not in names:
        raise ConstraintError(f"unknown name {name!r} (known: {', '.join(sorted(names))})", node.col_offset + 1)


def _check_constant(node: ast.Constant) -> None:
    if not isinstance(node.value, (bool, int, float, str, type(None))):
        raise ConstraintError(f"constant {node.value!r} is not a number, text, True or False", node.col_offset + 1)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.Name):
        return node.id not in TEXT_NAMES
    if isinstance(node, ast.Call):
        return all(_is_number(item) for item in node.args)
    return isinstance(node, (ast.Attribute, ast.BinOp, ast.UnaryOp))
