"""Which layers have experts, in the form of upstream's `moe_layer_freq`: a number, or a list of 0 and 1."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

EVERY = "1"
_MOST_LAYERS = 1_024
_FORM = "N for every N-th layer, or a list with 1 for each layer that has experts, such as [0]*1+[1]*3"


def frequency(value: Any) -> Any:
    """Return a number, a list or upstream's expression of one as text: "2", "[0,1,1,1]"; other types as they are.

    The expression is that of `--moe-layer-freq`: lists, added and multiplied by numbers. ValueError for others.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str, list, tuple)):
        return value
    if isinstance(value, (list, tuple)):
        value = f"[{','.join(map(str, value))}]"
    try:
        found = _evaluate(ast.parse(str(value).strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"is {value!r}; write {_FORM}") from error
    if isinstance(found, int):
        if not 1 <= found <= _MOST_LAYERS:
            raise ValueError(f"is {found}; every N-th layer has experts, with N from 1 to {_MOST_LAYERS}")
        return str(found)
    if not found or set(found) - {0, 1}:
        raise ValueError(f"is {value!r}; a list has 1 for a layer with experts, and 0 for a dense one")
    return f"[{','.join(map(str, found))}]"


def _evaluate(node: ast.expr) -> int | list[int]:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            numbers = [_evaluate(item) for item in items]
            if all(isinstance(number, int) for number in numbers):
                return [number for number in numbers if isinstance(number, int)]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            one, other = _evaluate(left), _evaluate(right)
            if isinstance(one, list) and isinstance(other, list):
                return one + other
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _evaluate(left), _evaluate(right)
            if isinstance(one, int):
                one, other = other, one
            if isinstance(one, list) and isinstance(other, int) and len(one) * other <= _MOST_LAYERS:
                return one * other
    raise ValueError(f"is {ast.unparse(node)!r}; write {_FORM}")


def listed(text: str) -> list[int] | None:
    """Return the list that a checked text is; None for a number."""
    return [int(character) for character in text if character.isdigit()] if text.startswith("[") else None


def with_experts(text: str, layers: int) -> list[bool]:
    """Return of each of `layers` layers whether it has experts, as get_gpt_decoder_layer_specs (0.12 to 0.19)."""
    found = listed(text)
    return list(map(bool, found)) if found is not None else [number % int(text) == 0 for number in range(layers)]


def shortened(with_experts: Sequence[bool], layers: int) -> str:
    """Return the text for a model of only `layers` layers whose kinds follow each other as in these.

    Of dense or expert layers in a row there is one, and the last ones fill the model: [0,0,0,1,1,1 ...] is [0,1,1,1].
    """
    changes = [kind for index, kind in enumerate(with_experts) if not index or kind != with_experts[index - 1]]
    kinds = (changes + changes[-1:] * layers)[:layers]
    return EVERY if all(kinds) else f"[{','.join(str(int(kind)) for kind in kinds)}]"
