"""Sizes of the loads of the timing leg."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.layout import Layout
from harness.core.cell.timing import NOT_TIMED, ROTARY_TOKENS, STEP_TOKENS, TimingConfig, rotary_tokens, step_tokens


def test_nothing_is_timed_unless_requested() -> None:
    assert not NOT_TIMED.timed
    assert TimingConfig(documents=(4, 16)).timed
    assert TimingConfig(unpacked=True).timed
    assert TimingConfig(full_rows=True).timed


def test_a_gpu_warms_up_longer_unless_the_matrix_says_how_long() -> None:
    assert (TimingConfig().warmup_on("cpu"), TimingConfig().warmup_on("cuda")) == (1, 3)
    assert (TimingConfig(warmup=5).warmup_on("cpu"), TimingConfig(warmup=5).warmup_on("cuda")) == (5, 5)


def test_the_usual_sizes() -> None:
    timing = TimingConfig(documents=(4, 16, 64, 256))
    assert (step_tokens(timing, Layout()), rotary_tokens(timing, Layout())) == (STEP_TOKENS, ROTARY_TOKENS)
    assert step_tokens(timing, Layout(cp=4)) == 2048  # 256 documents of 2 * cp tokens


@given(st.sampled_from([(4, 16), (2, 8), (3, 6, 12), (4, 16, 64, 256)]), st.integers(1, 8), st.sampled_from([1, 2, 4]))
def test_every_number_of_documents_fills_a_pack_with_aligned_documents(
    documents: tuple[int, ...], tp: int, cp: int
) -> None:
    layout, timing = Layout(tp=tp, cp=cp, sp=tp > 1), TimingConfig(documents=documents)
    for tokens in (step_tokens(timing, layout), rotary_tokens(timing, layout)):
        for count in documents:
            length, rest = divmod(tokens, count)
            assert (rest, length % layout.alignment) == (0, 0)
            assert length > 0
