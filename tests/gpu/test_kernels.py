"""Real attention kernels against the reference attention in float64, document by document, forward and backward."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.core.packing.options import align_up
from harness.features.attention.limits import KERNELS, TE_KINDS
from harness.features.attention.node_kinds import attention_fields, core_attention, installed
from harness.features.attention.node_reference import ReferenceAttention
from harness.upstreams.builtin.node_reference import SETS_PAD_BETWEEN_SEQS

pytestmark = pytest.mark.usefixtures("world_of_one")
LENGTHS = (1, 63, 128, 257, 300)  # real tokens; around the blocks of kernels
HEADS = 8
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
# Distance over norm. bf16 rounds by 2^-9 = 2e-3; fp32 computes in fp32, no TF32.
BOUND = {"bf16": 1e-2, "fp32": 1e-5}
SWITCHES = ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN")
ON = {"te": "111", "te-flash": "100", "te-fused": "010"}  # as Megatron sets the switches


@pytest.fixture
def there(kind: str, dtype: str, multiple: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips what this stack has not, and what the rules reject anyway."""
    if dtype == "fp32" and (kind not in ("te", "reference") or (kind == "te" and multiple > 1)):
        pytest.skip(f"{kind} has no fp32 kernel here: a rule rejects it")
    if kind in TE_KINDS:
        if installed("transformer-engine-torch") is None:
            pytest.skip("Transformer Engine is not installed")
        if kind == "te-flash" and installed("flash-attn-3") is None and (multiple > 1 or not installed("flash-attn")):
            pytest.skip("no flash-attn that takes this: a rule rejects it")
        for name, value in zip(SWITCHES, ON[kind]):
            monkeypatch.setenv(name, value)
        import transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention as engine

        engine._attention_backends["backend_selection_requires_update"] = True
        engine._attention_backends["attention_params"] = None


def offsets(sizes: list[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device="cuda")


def packed(multiple: int) -> tuple[PackedSeqParams, list[int]]:
    """Metadata as the reference data path makes them, and the slots of real tokens."""
    slots = [align_up(length, multiple) for length in LENGTHS]
    real = offsets(list(LENGTHS))
    padded = real if slots == list(LENGTHS) else offsets(slots)
    more: dict[str, Any] = {"pad_between_seqs": True} if SETS_PAD_BETWEEN_SEQS and padded is not real else {}
    params = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=real,
        cu_seqlens_kv=real,
        cu_seqlens_q_padded=padded,
        cu_seqlens_kv_padded=padded,
        max_seqlen_q=max(slots),
        max_seqlen_kv=max(slots),
        **more,
    )
    starts = [0, *itertools.accumulate(slots)]
    return params, [start + i for start, length in zip(starts, LENGTHS) for i in range(length)]


def attention(kind: str, dim: int, kv_heads: int, dtype: str) -> Any:
    config = TransformerConfig(
        num_layers=1,
        hidden_size=HEADS * dim,
        num_attention_heads=HEADS,
        num_query_groups=kv_heads,
        attention_dropout=0.0,
        bf16=dtype == "bf16",
        params_dtype=DTYPES[dtype],
        **attention_fields(kind),
    )
    return core_attention(kind)(
        config=config, layer_number=1, attn_mask_type=AttnMaskType.causal, attention_type="self"
    ).cuda()


def drawn(shape: tuple[int, ...], kv_heads: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Query, key and value [*shape, heads, dim], rounded to bf16 so that every dtype has the same numbers."""
    generator = torch.Generator().manual_seed(7)
    *outer, dim = shape
    made = [torch.randn(*outer, heads, dim, generator=generator).bfloat16() for heads in (HEADS, kv_heads, kv_heads)]
    return [part.to("cuda", dtype).requires_grad_() for part in made]


def taken(module: Any, parts: list[torch.Tensor], real: list[int], params: Any) -> list[torch.Tensor]:
    """Output at the real slots, and the gradients there, in float64."""
    out = module(*parts, None, attn_mask_type=AttnMaskType.causal, packed_seq_params=params)[real]
    weights = torch.linspace(-1, 1, out.numel(), device="cuda", dtype=torch.float64).view_as(out)
    (out.double() * weights).sum().backward()
    return [out.detach().double(), *(part.grad[real].double() for part in parts if part.grad is not None)]


def hold(found: list[torch.Tensor], expected: list[torch.Tensor], bound: float) -> None:
    assert len(found) == len(expected) == 4
    for name, one, other in zip(("output", "dq", "dk", "dv"), found, expected):
        distance = ((one.reshape(other.shape) - other).norm() / other.norm()).item()
        assert distance <= bound, f"{name} is off by {distance:.2g} of its norm, bound {bound:g}"


@pytest.mark.parametrize("multiple", [1, 16])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("kind", [*KERNELS, "reference"])
@pytest.mark.usefixtures("there")
def test_packed_documents(kind: str, dtype: str, dim: int, kv_heads: int, multiple: int) -> None:
    params, real = packed(multiple)
    slots = int(params.cu_seqlens_q_padded[-1])
    plain = ReferenceAttention(TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1), layer_number=1)
    expected = taken(plain, drawn((slots, dim), kv_heads, torch.float64), real, params)
    module = attention(kind, dim, kv_heads, dtype)
    hold(taken(module, drawn((slots, dim), kv_heads, DTYPES[dtype]), real, params), expected, BOUND[dtype])


@pytest.mark.parametrize("multiple", [1])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("kind", [*KERNELS, "reference"])
@pytest.mark.usefixtures("there")
def test_unpacked_rows(kind: str, dtype: str, dim: int, multiple: int) -> None:
    plain = ReferenceAttention(TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1), layer_number=1)
    every = list(range(257))
    expected = taken(plain, drawn((257, 2, dim), 2, torch.float64), every, None)
    module = attention(kind, dim, 2, dtype)
    hold(taken(module, drawn((257, 2, dim), 2, DTYPES[dtype]), every, None), expected, BOUND[dtype])
