from __future__ import annotations

from harness.oracle.drawing import END, PADDING
from harness.upstreams.node_tokenizer import text


def test_a_token_is_its_id_and_the_special_ones_have_names() -> None:
    assert text([17, 4, END, PADDING]) == "17 4 </s> <SPECIAL_233> "
    assert text([]) == ""
