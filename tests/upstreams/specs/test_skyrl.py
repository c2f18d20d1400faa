from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.packing.documents import Document
from harness.core.packing.packers import PackingStyle, one_per_row
from harness.upstreams.skyrl.spec import SKYRL


def test_skyrls_worker_gives_the_last_token_a_slot_and_a_document_a_row() -> None:
    style = SKYRL.trained(PackingStyle(packed=True, document_multiple=4, row_length=None, real_lengths=False), Layout())
    assert style.packer.fit is one_per_row
    lengths = {length: style.size(Document(index=0, length=length, original_length=length)) for length in (3, 4, 7)}
    assert lengths == {3: 4, 4: 8, 7: 8}
