from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.packing.documents import Document, DocumentsConfig, adversarial_mix, documents_of_step, lognormal, mix


def draw(config: DocumentsConfig, *, step: int = 0, count: int = 8, seq_length: int = 64, seed: int = 1) -> list[int]:
    return [d.length for d in documents_of_step(config, seed=seed, step=step, count=count, seq_length=seq_length)]


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_the_adversarial_mix_has_the_lengths_that_show_bugs(cp: int) -> None:
    seq_length = 256
    mix = adversarial_mix(seq_length, cp)
    documents = documents_of_step(mix, seed=1, step=0, count=8, seq_length=seq_length)
    lengths = [document.original_length for document in documents]
    assert 1 in lengths
    assert 2 * cp - 1 in lengths
    assert 2 * cp in lengths
    assert any(length > 8 * cp and length % 2 for length in lengths)
    assert any(seq_length // 2 < length < seq_length for length in lengths)
    truncated = [document for document in documents if document.original_length > seq_length]
    assert [document.length for document in truncated] == [seq_length - 1]
    assert [document.index for document in documents if document.masked] == [6]
    (copy,) = [document for document in documents if document.copy_of is not None]
    assert copy.length == documents[copy.copy_of or 0].length
    assert not copy.masked


@pytest.mark.parametrize(
    ("seq_length", "cp", "lengths"),
    [
        (64, 1, (1, 1, 11, 2, 11, 47, 9, 73)),
        (64, 4, (1, 7, 21, 8, 21, 47, 9, 73)),  # a third of the row limits the odd length
        (62, 4, (1, 7, 21, 8, 21, 46, 8, 71)),
        (13, 2, (1, 3, 5, 4, 5, 9, 3, 22)),
        (1, 1, (1, 1, 1, 2, 1, 1, 3, 10)),
    ],
)
def test_the_lengths_of_the_adversarial_mix_and_of_the_uncut_mix(
    seq_length: int, cp: int, lengths: tuple[int, ...]
) -> None:
    expected = DocumentsConfig(mode="adversarial", max_seq_len=seq_length, lengths=lengths, masked=(6,), repeat=(2, 4))
    assert mix("adversarial", seq_length, cp) == adversarial_mix(seq_length, cp) == expected
    short = tuple(min(length, seq_length - 1) for length in lengths)
    assert mix("uncut", seq_length, cp) == replace(expected, mode="uncut", lengths=short)
    assert mix("plain", seq_length, cp) == replace(expected, mode="plain", lengths=short, masked=())

    turns = replace(expected, mode="multi_turn", lengths=short, turns=3)
    assert mix("multi_turn", seq_length, cp) == turns
    assert mix("delimited", seq_length, cp) == replace(turns, mode="delimited", delimited=True)


@given(length=st.integers(1, 300), cut=st.integers(1, 300), turns=st.integers(1, 9))
def test_messages_are_prompts_and_answers_in_turn_and_only_answers_count(length: int, cut: int, turns: int) -> None:
    document = Document(index=0, length=min(length, cut), original_length=length, turns=turns)
    messages = document.messages
    assert [message.answer for message in messages] == [False, True] * (len(messages) // 2)
    assert len(messages) == 2 * min(turns, (length + 1) // 2)
    assert all(message.start < message.end for message in messages)
    assert [message.start for message in messages] == [0, *(message.end for message in messages[:-1])]
    assert messages[-1].end == length + 1
    inside = [next(part.answer for part in messages if part.start <= at < part.end) for at in range(length + 1)]
    assert list(document.loss_mask) == [int(answer) for answer in inside[1 : document.length + 1]]
    assert document.loss_tokens == sum(document.loss_mask)


def test_a_single_turn_counts_as_a_whole_and_a_masked_document_not_at_all() -> None:
    document = Document(index=0, length=5, original_length=7)
    assert (document.loss_mask, document.loss_tokens) == ((1,) * 5, 5)
    masked = replace(document, masked=True, turns=3)
    assert (masked.loss_mask, [message.answer for message in masked.messages]) == ((0,) * 5, [False])


def test_a_document_of_several_turns_by_example() -> None:
    document = Document(index=0, length=10, original_length=10, turns=2)  # 11 tokens: 1 + 4, and 1 + 5
    assert [(part.start, part.end) for part in document.messages] == [(0, 1), (1, 5), (5, 6), (6, 11)]
    assert document.loss_mask == (1, 1, 1, 1, 0, 1, 1, 1, 1, 1)
    assert replace(document, length=5).loss_tokens == 4


def test_every_mode_makes_documents_of_the_turns_that_were_asked_for() -> None:
    drawn = DocumentsConfig(mode="distribution", turns=4, delimited=True)
    read = DocumentsConfig(mode="file", lengths=(5, 7), turns=4, delimited=True)
    for config in (drawn, read):
        made = documents_of_step(config, seed=1, step=0, count=4, seq_length=64)
        assert {(document.turns, document.delimited) for document in made} == {(4, True)}
        assert config.section()["turns"] == 4


@pytest.mark.parametrize(
    ("config", "section"),
    [
        (adversarial_mix(64, 1), {"mode": "adversarial"}),
        (DocumentsConfig(mode="file", lengths=(3, 5)), {"mode": "file", "lengths": [3, 5]}),
        (DocumentsConfig(mode="file", path="a.csv", lengths=(3,)), {"mode": "file", "path": "a.csv", "lengths": [3]}),
        (
            DocumentsConfig(mode="distribution", min_seq_len=2),
            {
                "mode": "distribution",
                "type": "lognormal",
                "min_seq_len": 2,
                "max_seq_len": 64,
                "mean_seq_len": 24.0,
                "lognormal_sigma": 1.1,
            },
        ),
    ],
)
def test_the_section_holds_the_keys_of_its_mode(config: DocumentsConfig, section: dict[str, object]) -> None:
    assert config.section() == section


@given(cp=st.integers(1, 8), seq_length=st.integers(4, 4096), count=st.integers(1, 40))
def test_the_adversarial_mix_gives_valid_documents_at_every_size(cp: int, seq_length: int, count: int) -> None:
    documents = documents_of_step(adversarial_mix(seq_length, cp), seed=1, step=0, count=count, seq_length=seq_length)
    assert [document.index for document in documents] == list(range(count))
    for document in documents:
        assert 1 <= document.length == min(document.original_length, seq_length - 1)
        if document.copy_of is not None:
            original = documents[document.copy_of]
            assert original.index < document.index
            assert (original.length, original.masked) == (document.length, document.masked)


def test_each_round_of_the_adversarial_mix_repeats_its_own_document() -> None:
    documents = documents_of_step(adversarial_mix(64, 2), seed=1, step=0, count=16, seq_length=64)
    assert {d.index: d.copy_of for d in documents if d.copy_of is not None} == {4: 2, 12: 10}


@given(cp=st.integers(1, 8), seq_length=st.integers(4, 4096))
def test_no_document_of_the_uncut_mix_is_truncated_and_all_else_is_the_adversarial_mix(
    cp: int, seq_length: int
) -> None:
    drawn = [
        documents_of_step(mix(mode, seq_length, cp), seed=1, step=0, count=16, seq_length=seq_length)
        for mode in ("adversarial", "uncut")
    ]
    assert all(document.original_length == document.length for document in drawn[1])
    cut, uncut = ([(d.length, d.masked, d.copy_of) for d in documents] for documents in drawn)
    assert cut == uncut


def test_the_adversarial_mix_is_the_same_in_every_step() -> None:
    mix = adversarial_mix(64, 2)
    assert draw(mix, count=3, step=0) == draw(mix, count=3, step=5)


def test_lengths_of_a_file_continue_from_step_to_step_and_wrap_around() -> None:
    config = DocumentsConfig(mode="file", lengths=(5, 70, 9))
    assert draw(config, count=2, step=0) == [5, 63]
    assert draw(config, count=2, step=1) == [9, 5]
    assert draw(config, count=2, step=2) == [63, 9]


@given(
    low=st.integers(1, 20),
    width=st.integers(0, 200),
    sigma=st.floats(0, 3),
    seed=st.integers(0, 99),
    step=st.integers(0, 9),
)
def test_drawn_lengths_stay_between_their_bounds(low: int, width: int, sigma: float, seed: int, step: int) -> None:
    high = low + width
    config = DocumentsConfig(
        mode="distribution", min_seq_len=low, max_seq_len=high, mean_seq_len=(low + high) / 2, lognormal_sigma=sigma
    )
    documents = documents_of_step(config, seed=seed, step=step, count=20, seq_length=64)
    assert [document.index for document in documents] == list(range(20))
    assert all(low <= document.original_length <= high for document in documents)
    assert all(document.length == min(document.original_length, 63) for document in documents)
    assert documents == documents_of_step(config, seed=seed, step=step, count=20, seq_length=64)


def test_drawn_lengths_differ_by_seed_and_by_step() -> None:
    config = DocumentsConfig(mode="distribution", max_seq_len=4096, mean_seq_len=500)
    drawn = [draw(config, seed=seed, step=step, seq_length=4096) for seed in (1, 2) for step in (0, 1)]
    assert len({tuple(lengths) for lengths in drawn}) == 4


def test_drawn_lengths_have_the_mean_that_was_asked_for() -> None:
    config = DocumentsConfig(mode="distribution", max_seq_len=10**6, mean_seq_len=500, lognormal_sigma=0.5)
    lengths = draw(config, count=20000, seq_length=10**6)
    assert sum(lengths) / len(lengths) == pytest.approx(500, rel=0.02)
    flat = replace(config, lognormal_sigma=0.0)
    assert set(draw(flat, seq_length=10**6)) <= {499, 500}


def test_mock_documents_have_a_token_less_than_the_length_that_upstream_draws_with_its_own_seed() -> None:
    plain = DocumentsConfig(mode="distribution", min_seq_len=4, max_seq_len=40, mean_seq_len=14)
    drawn = documents_of_step(plain, seed=0, step=1, count=6, seq_length=64)
    found = documents_of_step(replace(plain, mock=True), seed=1234, step=1, count=6, seq_length=64)
    assert [document.length for document in found] == [document.length - 1 for document in drawn]
    mock = replace(plain, mock=True)
    (tested,) = documents_of_step(mock, seed=1, step=5, count=1, seq_length=64, evaluation=2, tests=2)
    (later,) = documents_of_step(plain, seed=0, step=666_667, count=1, seq_length=64)
    (checked,) = documents_of_step(mock, seed=1, step=4, count=1, seq_length=64, evaluation=1, tests=2)
    (between,) = documents_of_step(plain, seed=0, step=333_334, count=1, seq_length=64)
    assert (tested.length, checked.length) == (later.length - 1, between.length - 1)


@given(seed=st.integers(0, 2**32 - 1), mu=st.floats(-5, 12), sigma=st.floats(0, 4), first=st.integers(0, 700))
def test_numbers_are_those_of_numpys_legacy_generator(seed: int, mu: float, sigma: float, first: int) -> None:
    drawn = np.random.RandomState(seed).lognormal(mu, sigma, first + 3)[first:]
    assert [lognormal(seed, first + place, mu=mu, sigma=sigma) for place in range(3)] == pytest.approx(
        drawn.tolist(), rel=1e-14
    )


def test_numbers_do_not_depend_on_the_order_of_calls() -> None:
    there = [lognormal(7, index, mu=1.0, sigma=1.0) for index in range(2000)]
    assert [lognormal(7, index, mu=1.0, sigma=1.0) for index in reversed(range(2000))] == there[::-1]


def test_seeds_are_taken_modulo_the_range_of_numpys_generator() -> None:
    assert lognormal(2**32 + 5, 3, mu=1.0, sigma=1.0) == lognormal(5, 3, mu=1.0, sigma=1.0)


def test_a_number_too_large_for_a_float_is_still_one() -> None:
    assert lognormal(0, 0, mu=1000.0, sigma=0.0) > 1e300


def test_lengths_are_those_of_the_mock_sft_dataset() -> None:
    """The first MockSFTLowLevelDataset(...).sequence_lengths of Megatron-LM dev d48bd6be0a with its default seed, 0."""
    config = DocumentsConfig(mode="distribution", min_seq_len=100, max_seq_len=4096, mean_seq_len=2048)
    steps = [documents_of_step(config, seed=0, step=step, count=4, seq_length=8192) for step in range(3)]
    lengths = [document.original_length for step in steps for document in step]
    assert lengths == [4096, 1736, 3282, 4096, 4096, 381, 3180, 946, 998, 1756, 1310, 4096]
