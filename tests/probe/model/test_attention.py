"""The reference attention compared with causal attention over each document alone."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.features.attention import node_reference
from harness.features.attention.node_reference import ReferenceAttention
from harness.features.attention.node_rotary import attention_ops

pytestmark = pytest.mark.usefixtures("world_of_one")


def _module() -> ReferenceAttention:
    return ReferenceAttention(TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=4), layer_number=1)


def _random(tokens: int, heads: int) -> torch.Tensor:
    return torch.randn(tokens, heads, 4, generator=torch.Generator().manual_seed(heads), requires_grad=True)


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention over one document, [t, heads, dim], with grouped keys and values repeated."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    out = F.scaled_dot_product_attention(*(part.transpose(0, 1) for part in (query, key, value)), is_causal=True)
    return out.transpose(0, 1).flatten(1)


def test_packed_attention_is_causal_attention_of_each_document_alone() -> None:
    query, key, value = _random(12, 4), _random(12, 2), _random(12, 2)
    bounds = [0, 1, 5, 12]
    params = SimpleNamespace(cu_seqlens_q=torch.tensor(bounds, dtype=torch.int32), cu_seqlens_q_padded=None)
    out = _module()(query, key, value, None, packed_seq_params=params)
    alone = [_causal(query[a:b], key[a:b], value[a:b]) for a, b in itertools.pairwise(bounds)]
    torch.testing.assert_close(out, torch.cat(alone))


def test_documents_start_at_the_padded_offsets() -> None:
    query, key, value = _random(8, 4), _random(8, 4), _random(8, 4)
    real, padded = torch.tensor([0, 3, 6], dtype=torch.int32), torch.tensor([0, 4, 8], dtype=torch.int32)
    out = _module()(
        query, key, value, None, packed_seq_params=SimpleNamespace(cu_seqlens_q=real, cu_seqlens_q_padded=padded)
    )
    torch.testing.assert_close(out[4:], _causal(query[4:], key[4:], value[4:]))


def test_without_metadata_it_attends_over_the_whole_row_as_upstream_does() -> None:
    query, key, value = _random(8, 4), _random(8, 2), _random(8, 2)
    out = _module()(*(part.unsqueeze(1) for part in (query, key, value)), None, packed_seq_params=None)
    assert out.shape == (8, 1, 16)
    torch.testing.assert_close(out[:, 0], _causal(query, key, value))


@pytest.mark.parametrize("kind", ["off-by-one", "learnable"])
def test_a_sink_takes_its_share_of_the_weights_of_every_token(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=4, softmax_type=kind)
    module = ReferenceAttention(config, layer_number=1)
    sink = torch.zeros(4)
    if kind == "learnable":
        sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
        assert [name for name, _ in module.named_parameters()] == ["softmax_offset"]
        module.softmax_offset.data.copy_(sink)
    query, key, value = _random(5, 4), _random(5, 2), _random(5, 2)
    params = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 2, 5], dtype=torch.int32), cu_seqlens_q_padded=None)
    out = module(query, key, value, None, packed_seq_params=params)
    scores = (query[4] * key[2:].repeat_interleave(2, 1)).sum(-1) / 2  # the last token of the second document
    weights = scores.exp() / (scores.exp().sum(0) + sink.exp())
    expected = (weights[..., None] * value[2:].repeat_interleave(2, 1)).sum(0).flatten()
    torch.testing.assert_close(out[4], expected)
    if kind == "learnable":
        out.sum().backward()
        assert module.softmax_offset.grad is not None and module.softmax_offset.grad.all()


def test_no_gradient_flows_between_documents() -> None:
    query, key, value = _random(8, 4), _random(8, 4), _random(8, 4)
    params = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 3, 8], dtype=torch.int32), cu_seqlens_q_padded=None)
    _module()(query, key, value, None, packed_seq_params=params)[3:].sum().backward()
    for part in (query, key, value):
        assert part.grad is not None
        assert not part.grad[:3].any()
    assert value.grad is not None
    assert value.grad[3:].any()


@pytest.mark.parametrize("part", [5, 12])
def test_long_rows_processed_in_parts_have_the_same_values_and_gradients(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = [0, 1, 5, 12]
    params = SimpleNamespace(cu_seqlens_q=torch.tensor(bounds, dtype=torch.int32), cu_seqlens_q_padded=None)

    def taken(limit: int) -> list[torch.Tensor]:
        monkeypatch.setattr(node_reference, "PART", limit)
        inputs = [_random(12, 4), _random(12, 2), _random(12, 2)]
        out = _module()(*inputs, None, packed_seq_params=params)
        (out * torch.linspace(0, 1, out.numel()).view_as(out)).sum().backward()  # gradients of about 1
        return [out.detach(), *(item.grad for item in inputs if item.grad is not None)]

    for one, other in zip(taken(part), taken(1024), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("part", [5, 1024])
def test_it_is_computed_by_plain_products_and_not_by_a_fused_kernel(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reference, "PART", part)
    query = torch.randn(12, 4, 16)
    params = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 1, 5, 12], dtype=torch.int32), cu_seqlens_q_padded=None)
    with attention_ops() as names:
        _module()(query, query, query, None, packed_seq_params=params)
    assert names == {"_scaled_dot_product_attention_math"}


@pytest.mark.parametrize("window", [0, 2, 100])
def test_a_window_ends_at_the_start_of_a_document(window: int) -> None:
    config = TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=4, window_size=(window, 0))
    query, key, value = _random(9, 4), _random(9, 2), _random(9, 2)
    params = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 4, 9], dtype=torch.int32), cu_seqlens_q_padded=None)
    out = ReferenceAttention(config, layer_number=1)(query, key, value, None, packed_seq_params=params)
    for token, start in [(1, 0), (3, 0), (4, 4), (8, 4)]:
        first = max(start, token - window)
        alone = _causal(query[first : token + 1], key[first : token + 1], value[first : token + 1])
        torch.testing.assert_close(out[token], alone[-1])


def test_layers_that_upstream_leaves_out_have_no_window() -> None:
    config = TransformerConfig(
        num_layers=4, hidden_size=16, num_attention_heads=4, window_size=(3, 0), window_attn_skip_freq=2
    )
    windows = [ReferenceAttention(config, layer_number=number).window for number in range(1, 5)]
    assert windows == [3, None, 3, None]
