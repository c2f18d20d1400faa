"""`-k` reads what pytest's -k reads: texts, and, or, not, parentheses."""

from __future__ import annotations

import pytest

from harness.app.selection.expression import parse
from harness.core.errors import InputError

IDS = ["tp1-cp1-sft", "tp2-cp1-sft", "tp2-cp2-sft", "tp2-cp2-reference"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("tp2", IDS[1:]),
        ("tp2 and cp2", IDS[2:]),
        ("tp1 or reference", [IDS[0], IDS[3]]),
        ("not tp2", IDS[:1]),
        ("tp2 and not (cp2 or reference)", [IDS[1]]),
        ("tp1 or tp2 and reference", [IDS[0], IDS[3]]),  # and binds closer
        ("not not sft", IDS[:3]),
    ],
)
def test_an_expression_picks_ids(text: str, wanted: list[str]) -> None:
    fits = parse(text)
    assert [name for name in IDS if fits(name)] == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a text is missing at the end"),
        ("tp2 and", "a text is missing at the end"),
        ("or tp2", "a text is missing before 'or'"),
        ("(tp2", "a parenthesis is not closed"),
        ("tp2)", "')' is one word too many"),
        ("tp2 cp2", "'cp2' is one word too many"),
    ],
)
def test_what_cannot_be_read_is_an_input_error(text: str, said: str) -> None:
    with pytest.raises(InputError, match="-k: ") as raised:
        parse(text)
    assert said in str(raised.value)
