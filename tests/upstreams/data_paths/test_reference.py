"""The metadata of the reference data path, as Transformer Engine reads it."""

from __future__ import annotations

import torch

from harness.upstreams.builtin.node_reference import SETS_PAD_BETWEEN_SEQS, _packed_seq_params


def test_without_padding_both_offsets_are_one_tensor_and_pad_between_seqs_is_not_set() -> None:
    params = _packed_seq_params(torch.tensor([[0, 3, 8], [0, 3, 8]]), None)
    assert params.cu_seqlens_q_padded is params.cu_seqlens_q
    assert params.cu_seqlens_kv_padded is params.cu_seqlens_kv
    assert getattr(params, "pad_between_seqs", None) is None


def test_with_padding_pad_between_seqs_is_set_if_the_release_has_it() -> None:
    params = _packed_seq_params(torch.tensor([[0, 3, 8], [0, 4, 10]]), None)
    assert params.cu_seqlens_q.tolist() == [0, 3, 8]
    assert params.cu_seqlens_q_padded.tolist() == [0, 4, 10]
    assert (params.max_seqlen_q, type(params.max_seqlen_q)) == (6, int)
    assert getattr(params, "pad_between_seqs", None) is (True if SETS_PAD_BETWEEN_SEQS else None)
