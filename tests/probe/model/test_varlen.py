"""VarlenAttention compared with the reference attention; varlen_contract.py replaces torch's kernel.

The kernel itself runs in tests/gpu.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.attention.varlen as upstream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.core.packing.options import align_up
from harness.features.attention.node_reference import ReferenceAttention, VarlenAttention
from tests.runtime import varlen_contract

pytestmark = pytest.mark.usefixtures("world_of_one")
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}  # bf16 rounds by 2^-8, in inputs, outputs and gradients


@pytest.fixture(autouse=True)
def contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "varlen_attn", varlen_contract.varlen_attn)


def module(kind: Any, **more: Any) -> Any:
    return kind(TransformerConfig(num_layers=1, hidden_size=16, num_attention_heads=4), layer_number=1, **more)


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return made.requires_grad_()


def packed(lengths: list[int], multiple: int) -> SimpleNamespace:
    """PackedSeqParams of documents padded to a multiple; one tensor for both offsets if they are equal."""
    slots = [align_up(length, multiple) for length in lengths]
    real = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    padded = torch.tensor([0, *itertools.accumulate(slots)], dtype=torch.int32)
    return SimpleNamespace(
        cu_seqlens_q=real,
        cu_seqlens_q_padded=real if torch.equal(real, padded) else padded,
        max_seqlen_q=max(slots),
        real=[start + i for start, length in zip(padded.tolist(), lengths) for i in range(length)],
    )


def results(attention: Any, params: Any, heads: int, kv: int, dim: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Output at the real tokens, and gradients of query, key and value for a loss over real tokens."""
    total = int(params.cu_seqlens_q_padded[-1])
    parts = [drawn(total, number, dim, seed=seed, dtype=dtype) for seed, number in enumerate((heads, kv, kv))]
    out = attention(*parts, None, packed_seq_params=params)[params.real]
    (out.float() * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.detach(), *(part.grad for part in parts if part.grad is not None)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    multiple=st.sampled_from([1, 2, 4]),
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (1, 1)]),
    dim=st.sampled_from([8, 16]),
    dtype=st.sampled_from(list(CLOSE)),
)
def test_on_packed_rows_it_computes_the_same_as_the_reference_attention(
    lengths: list[int], multiple: int, heads: tuple[int, int], dim: int, dtype: torch.dtype
) -> None:
    params = packed(lengths, multiple)
    pairs = zip(
        results(module(VarlenAttention), params, *heads, dim, dtype),
        results(module(ReferenceAttention), params, *heads, dim, dtype),
        strict=True,
    )
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=CLOSE[dtype], atol=CLOSE[dtype])


@pytest.mark.parametrize("rows", [1, 2])
def test_unpacked_rows_are_attended_one_by_one(rows: int) -> None:
    parts = [drawn(6, rows, heads, 8, seed=seed) for seed, heads in enumerate((4, 2, 2))]
    found, expected = (module(kind)(*parts, None) for kind in (VarlenAttention, ReferenceAttention))
    assert found.shape == expected.shape == (6, rows, 32)
    torch.testing.assert_close(found, expected)


def test_the_content_of_padding_does_not_affect_real_tokens_and_gets_no_gradient_from_them() -> None:
    params = packed([3, 5], 4)
    parts = [drawn(12, heads, 8, seed=seed) for seed, heads in enumerate((4, 2, 2))]
    padding = [slot for slot in range(12) if slot not in params.real]
    before = module(VarlenAttention)(*parts, None, packed_seq_params=params)
    before[params.real].sum().backward()
    assert all(part.grad is not None and not part.grad[padding].any() for part in parts)
    other = [part.detach().index_fill(0, torch.tensor(padding), 7.0) for part in parts]
    after = module(VarlenAttention)(*other, None, packed_seq_params=params)
    assert torch.equal(before.detach()[params.real], after[params.real])


def test_max_seqlen_may_be_a_tensor_of_one_element_and_inputs_may_have_a_batch_dimension_of_one() -> None:
    params = packed([3, 5], 1)
    parts = [drawn(8, heads, 8, seed=seed) for seed, heads in enumerate((4, 2, 2))]
    plain = module(VarlenAttention)(*parts, None, packed_seq_params=params)
    params.max_seqlen_q, params.cu_seqlens_q_padded = torch.tensor([5]), None
    wide = [part.unsqueeze(1) for part in parts]
    assert torch.equal(module(VarlenAttention)(*wide, None, packed_seq_params=params), plain)


def test_a_scale_of_the_model_is_passed_on() -> None:
    parts = [drawn(5, 4, 8, seed=seed) for seed in range(3)]
    one, other = (module(kind, softmax_scale=0.1) for kind in (VarlenAttention, ReferenceAttention))
    params = packed([2, 3], 1)
    torch.testing.assert_close(
        one(*parts, None, packed_seq_params=params), other(*parts, None, packed_seq_params=params)
    )


def test_grouped_heads_also_work_with_the_signature_of_torch_2_10(monkeypatch: pytest.MonkeyPatch) -> None:
    params = packed([4, 3], 4)
    new = results(module(VarlenAttention), params, 4, 2, 8, torch.float32)
    monkeypatch.setattr(upstream, "varlen_attn", varlen_contract.varlen_attn_of_torch_2_10)
    for found, expected in zip(results(module(VarlenAttention), params, 4, 2, 8, torch.float32), new, strict=True):
        torch.testing.assert_close(found, expected)


def test_the_contract_has_the_parameters_of_torchs_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the module would be tested with a function that torch does not have."""
    import inspect

    monkeypatch.undo()
    theirs = inspect.signature(upstream.varlen_attn).parameters
    ours = inspect.signature(varlen_contract.varlen_attn).parameters
    assert {name: item.kind for name, item in ours.items()}.items() <= {n: i.kind for n, i in theirs.items()}.items()
    assert [item.default for item in ours.values()] == [theirs[name].default for name in ours]
