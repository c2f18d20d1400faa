from __future__ import annotations

import pytest

from harness.core.cell.layout import Layout
from harness.core.data_paths.nemo_rl import NEMO_RL
from harness.core.data_paths.verl import VERL
from harness.core.packing.arithmetic import plan_step
from harness.core.packing.documents import Document
from harness.core.packing.options import DEFAULT_OPTIONS

LAYOUTS = (Layout(), Layout(tp=2, sp=True), Layout(tp=2), Layout(cp=2), Layout(tp=2, cp=2), Layout(tp=2, sp=True, cp=2))


def test_nemo_rl_pads_to_the_least_multiple_of_its_layout_and_verl_to_tp_also_without_sp() -> None:
    multiples = [
        [path.style(layout, 64, DEFAULT_OPTIONS).document_multiple for layout in LAYOUTS] for path in (NEMO_RL, VERL)
    ]
    assert multiples == [[1, 2, 1, 4, 4, 8], [1, 2, 2, 4, 8, 8]]


@pytest.mark.parametrize("path", [NEMO_RL, VERL])
def test_the_last_token_of_a_rollout_takes_a_slot(path: object) -> None:
    style = path.style(Layout(cp=2), 64, DEFAULT_OPTIONS)  # type: ignore[attr-defined]
    sizes = [style.size(Document(index=0, length=length, original_length=length)) for length in (3, 4)]
    assert sizes == [4, 8]


def test_with_stages_nemo_rl_packs_of_a_replica_have_one_length_and_the_last_rollout_takes_the_rest() -> None:
    style = NEMO_RL.style(Layout(pp=2), 16, DEFAULT_OPTIONS)
    documents = [
        Document(index=number, length=length, original_length=length) for number, length in enumerate((8, 3, 4, 5))
    ]
    [[first, second]] = plan_step(documents, style, Layout(pp=2), seq_length=16, micro_batch_size=1)
    assert [(item.start, item.padded_length) for item in (*first.placed, *second.placed)] == [
        (0, 9),
        (9, 4),
        (0, 5),
        (5, 8),
    ]
    assert [batch.params().cu_seqlens_q for batch in (first, second)] == [(0, 9, 13), (0, 5, 13)]  # type: ignore[union-attr]
    assert not NEMO_RL.style(Layout(), 16, DEFAULT_OPTIONS).even_last
