from __future__ import annotations

import pytest

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import PackedParams
from harness.core.packing.documents import Document
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.core.packing.packers import Packer, plan_step
from harness.upstreams.megatron_lm.spec import MAX_ROLLOUTS, MEGATRON_RL
from harness.upstreams.nemo_rl.spec import NEMO_RL
from harness.upstreams.verl.spec import VERL

LAYOUTS = (Layout(), Layout(tp=2, sp=True), Layout(tp=2), Layout(cp=2), Layout(tp=2, cp=2), Layout(tp=2, sp=True, cp=2))


def of_lengths(*lengths: int) -> list[Document]:
    return [Document(index=number, length=length, original_length=length) for number, length in enumerate(lengths)]


def test_nemo_rl_pads_to_the_least_multiple_of_its_layout_and_verl_to_tp_also_without_sp() -> None:
    multiples = [
        [path.style(layout, 64, DEFAULT_OPTIONS).document_multiple for layout in LAYOUTS] for path in (NEMO_RL, VERL)
    ]
    assert multiples == [[1, 2, 1, 4, 4, 8], [1, 2, 2, 4, 8, 8]]


def test_nemo_rl_pads_to_the_multiple_that_it_is_given() -> None:
    style = NEMO_RL.style(Layout(cp=2), 128, PackingOptions(pad_seq_to_mult=64))
    assert [style.size(document) for document in of_lengths(3, 63, 64)] == [64, 64, 128]


def test_the_last_document_takes_what_verl_adds_to_a_row_also_beyond_seq_length() -> None:
    style = VERL.style(Layout(cp=2), 32, PackingOptions(pad_row_to_mult=24))
    [[one, two]] = plan_step(of_lengths(11, 19, 28), style, Layout(cp=2), seq_length=32, micro_batch_size=1)
    assert [(item.start, item.padded_length) for item in (*one.placed, *two.placed)] == [(0, 12), (12, 36), (0, 48)]
    assert one.params().max_seqlen_q == 36  # type: ignore[union-attr]


@pytest.mark.parametrize("path", [NEMO_RL, VERL])
def test_the_last_token_of_a_rollout_takes_a_slot(path: object) -> None:
    style = path.style(Layout(cp=2), 64, DEFAULT_OPTIONS)  # type: ignore[attr-defined]
    sizes = [style.size(Document(index=0, length=length, original_length=length)) for length in (3, 4)]
    assert sizes == [4, 8]


def test_with_stages_nemo_rl_packs_of_a_replica_have_one_length_and_the_last_rollout_takes_the_rest() -> None:
    style = NEMO_RL.style(Layout(pp=2), 16, DEFAULT_OPTIONS)
    [[first, second]] = plan_step(of_lengths(8, 3, 4, 5), style, Layout(pp=2), seq_length=16, micro_batch_size=1)
    assert [(item.start, item.padded_length) for item in (*first.placed, *second.placed)] == [
        (0, 9),
        (9, 4),
        (0, 5),
        (5, 8),
    ]
    assert [batch.params().cu_seqlens_q for batch in (first, second)] == [(0, 9, 13), (0, 5, 13)]  # type: ignore[union-attr]
    assert NEMO_RL.style(Layout(), 16, DEFAULT_OPTIONS).packer == Packer()


def megatron_rl_params(lengths: tuple[int, ...], layout: Layout) -> list[PackedParams | None]:
    documents = of_lengths(*lengths)
    style = MEGATRON_RL.style(layout, 16, DEFAULT_OPTIONS)
    replicas = plan_step(documents, style, layout, seq_length=16, micro_batch_size=1)
    return [batch.params() for replica in replicas for batch in replica]


def test_megatron_rl_packs_from_the_longest_and_repeats_the_last_of_a_fixed_number_of_offsets() -> None:
    [first, second] = megatron_rl_params((4, 9, 15), Layout())
    assert first is not None and second is not None
    assert first.cu_seqlens_q == (0, *[16] * (MAX_ROLLOUTS + 1))
    assert second.cu_seqlens_q == (0, 10, 15, *[16] * (MAX_ROLLOUTS - 1))
    assert (first.max_seqlen_q, second.max_seqlen_q, first.cu_seqlens_q_padded) == (16, 16, None)


def test_with_context_ranks_the_padding_of_a_bin_counts_as_tokens_and_that_of_rollouts_does_not() -> None:
    [params] = megatron_rl_params((4, 6), Layout(cp=2))
    assert params is not None and params.cu_seqlens_q_padded is not None
    assert params.cu_seqlens_q_padded[:4] == (0, 8, 16, 16)
    assert params.cu_seqlens_q[:4] == (0, 7, 12, 12)


def test_megatron_rl_cannot_split_bins_or_share_rollouts_unevenly() -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        megatron_rl_params((15, 15, 7, 7), Layout(dp=2))
    with pytest.raises(ValueError, match="cannot be shared evenly by dp = 2"):
        megatron_rl_params((15, 15, 15), Layout(dp=2))
