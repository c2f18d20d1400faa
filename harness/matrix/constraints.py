"""Expressions over axis names, e.g. `tp * pp * cp <= 8` or `packing != "unpacked" or cp == 1`.

Python syntax, restricted to names, constants, arithmetic, comparisons, and / or / not, in, min and max. The tree is
checked node by node, so that errors have a column, then evaluated by simpleeval, which limits the length of every text
that an operator produces. Results are cached by the values of the names in the expression.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any

from simpleeval import DEFAULT_OPERATORS, EvalWithCompoundTypes, InvalidExpression

from harness.core.cell.axes import axes

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_OPERATORS = {kind: DEFAULT_OPERATORS[kind] for kind in (*_ARITHMETIC, *_COMPARISONS, ast.Not, ast.USub)}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}
MAX_CHARACTERS = 1_000
MAX_DEPTH = 50
_KEPT = 2**16  # results of one constraint that are cached
TEXT_NAMES = frozenset(name for name, axis in axes().items() if axis.type is str)


class ConstraintError(ValueError):
    """An invalid expression. `column` counts from 1; 0 if the error appears only in evaluation."""

    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(f"column {column}: {message}" if column else message)


@dataclass(frozen=True)
class Constraint:
    """A checked expression. `evaluate` takes the values of `names`, in that order."""

    text: str
    names: tuple[str, ...]
    evaluate: Callable[[tuple[Any, ...]], Any] = field(compare=False, repr=False)

    @cached_property
    def _values(self) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
        if len(self.names) > 1 and not any("." in name for name in self.names):
            return itemgetter(*self.names)  # tested for every combination: a third of the time of the loop below
        return lambda values: tuple([_value(values, name) for name in self.names])

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether a combination satisfies it.

        `values` has every name, a dotted one as attribute of its section.
        """
        try:
            result = self.evaluate(self._values(values))
        except (ArithmeticError, TypeError, InvalidExpression) as error:
            raise ConstraintError(f"{self.text!r} cannot be evaluated: {error}") from error
        if not isinstance(result, bool):
            raise ConstraintError(f"{self.text!r} is not a condition: it gives {result!r}, not true or false")
        return result


def _value(values: Mapping[str, Any], name: str) -> Any:
    if name in values:
        return values[name]
    section, _, key = name.partition(".")
    return getattr(values[section], key)


def compile_constraint(text: str, names: Iterable[str]) -> Constraint:
    """Return the checked expression; ConstraintError with the column of the first thing that is not allowed.

    `names` are plain ("tp") or dotted ("train.seq_length").
    """
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        raise ConstraintError(f"{len(text):,} characters, at most {MAX_CHARACTERS:,} are allowed", MAX_CHARACTERS + 1)
    try:
        tree = ast.parse(text, mode="eval").body
        _check(tree, frozenset(names), MAX_DEPTH)
    except ConstraintError:
        raise
    except SyntaxError as error:
        raise ConstraintError(f"not an expression: {error.msg}", error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:  # MemoryError: CPython's parser on deep nesting
        raise ConstraintError(f"not an expression: {error or 'nested too deeply'}", 1) from None
    flat = _DottedNames().visit(tree)
    used = tuple(dict.fromkeys(node.id for node in ast.walk(flat) if isinstance(node, ast.Name)))
    used = tuple(name for name in used if name not in _FUNCTIONS)
    return Constraint(text, used, lru_cache(maxsize=_KEPT)(_evaluation(text, flat, used)))


def _evaluation(text: str, tree: ast.expr, names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
    evaluator = EvalWithCompoundTypes(operators=_OPERATORS, functions=dict(_FUNCTIONS), names={})

    def evaluate(values: tuple[Any, ...]) -> Any:
        evaluator.names = dict(zip(names, values))
        return evaluator.eval(text, previously_parsed=tree)

    return evaluate


class _DottedNames(ast.NodeTransformer):
    """Turns `train.seq_length` into one name, so that evaluation looks up names only, never attributes."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Name:
        return ast.Name(id=ast.unparse(node), ctx=ast.Load())


def _check(node: ast.expr, names: frozenset[str], levels: int) -> None:
    if not levels:
        raise ConstraintError(f"nested too deeply, at most {MAX_DEPTH} levels are allowed", node.col_offset + 1)
    if isinstance(node, (ast.Name, ast.Attribute)):
        _check_name(node, names)
    elif isinstance(node, ast.Constant):
        _check_constant(node)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
        for operand in (node.left, node.right):
            if not _is_number(operand):
                raise ConstraintError("arithmetic needs numbers", operand.col_offset + 1)
            _check(operand, names, levels - 1)
    else:
        for part in _parts(node):
            _check(part, names, levels - 1)


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the operands of an allowed compound node."""
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
        near = get_close_matches(name, names, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        hint = f"{guess} (known: {', '.join(sorted(names))})"
        raise ConstraintError(f"unknown name {name!r}{hint}", node.col_offset + 1)


def _check_constant(node: ast.Constant) -> None:
    if not isinstance(node.value, (bool, int, float, str, type(None))):
        raise ConstraintError(f"constant {node.value!r} is not a number, text, True or False", node.col_offset + 1)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, ast.Name):
        return node.id not in TEXT_NAMES
    if isinstance(node, ast.Call):
        return all(_is_number(argument) for argument in node.args)
    return isinstance(node, (ast.Attribute, ast.BinOp, ast.UnaryOp))
