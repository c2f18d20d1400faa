"""Stubs of recurrent kernels: the same numbers as upstream's torch code, and a new state for every document."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from megatron.core.ssm.gated_delta_net import torch_chunk_gated_delta_rule
from torch import Tensor

from harness.features.hybrid import node_stubs as stubs
from harness.oracle.recurrent import convolved

BOUNDS = [0, 1, 8, 20]
HEADS, SIZE, STATE, GROUPS = 4, 6, 5, 2


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def delta_inputs() -> dict[str, Tensor]:
    shape = (1, BOUNDS[-1], HEADS, SIZE)
    return {
        "q": F.normalize(drawn(*shape), dim=-1),
        "k": F.normalize(drawn(*shape).flip(1), dim=-1),
        "v": drawn(*shape),
        "g": -drawn(*shape[:3]).abs(),
        "beta": drawn(*shape[:3]).sigmoid(),
    }


def by_documents(kernel: Any, parts: dict[str, Tensor]) -> Tensor:
    """Every document alone."""
    cut = [{name: part[:, a:b] for name, part in parts.items()} for a, b in pairwise(BOUNDS)]
    return torch.cat([kernel(**some) for some in cut], 1)


def test_the_delta_rule_is_that_of_upstreams_chunked_torch_code() -> None:
    parts = delta_inputs()
    right, _ = torch_chunk_gated_delta_rule(**parts)
    found, _ = stubs.gated_delta_rule(**parts)
    torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)


def test_the_delta_rule_of_a_row_is_that_of_its_documents_alone() -> None:
    parts = delta_inputs()
    row, _ = stubs.gated_delta_rule(**parts, cu_seqlens=torch.tensor(BOUNDS))
    alone = by_documents(lambda **some: torch_chunk_gated_delta_rule(**some)[0], parts)
    torch.testing.assert_close(row, alone, atol=1e-5, rtol=1e-5)
    leaking, _ = stubs.gated_delta_rule(**parts)
    torch.testing.assert_close(leaking[:, :1], row[:, :1])
    assert not torch.allclose(leaking[:, 1:8], row[:, 1:8], atol=1e-3)


def test_the_convolution_is_torchs_and_stops_at_documents() -> None:
    x, weight, bias = drawn(1, BOUNDS[-1], 3), drawn(3, 4), drawn(3)

    def right(x: Tensor) -> Tensor:
        padded = F.conv1d(x.transpose(1, 2), weight[:, None], bias, padding=3, groups=3)
        return F.silu(padded[..., : x.shape[1]].transpose(1, 2))

    found, _ = stubs.causal_conv1d(x, weight, bias, activation="silu")
    torch.testing.assert_close(found, right(x))
    found, _ = stubs.causal_conv1d(x, weight, bias, activation="silu", cu_seqlens=torch.tensor(BOUNDS))
    torch.testing.assert_close(found, by_documents(right, {"x": x}))


def test_bf16_is_rounded_once_as_kernels_do_it() -> None:
    row, kernel, offset, toward = (part.bfloat16() for part in (drawn(1, 64, 3), drawn(3, 4), drawn(3), drawn(64, 3)))
    weight = kernel[:, None].requires_grad_()
    wide = weight.detach().double().requires_grad_()
    found, _ = stubs.causal_conv1d(row, weight[:, 0], offset, activation="silu")
    right = convolved(row[0].double(), wide, offset.double(), (64,))
    ours = convolved(row[0], weight, offset, (64,))
    for result in (found[0], ours):
        assert torch.equal(result, right.bfloat16())
        (gradient,) = torch.autograd.grad(result, weight, toward)
        (exact,) = torch.autograd.grad(right, wide, toward.double(), retain_graph=True)
        assert torch.equal(gradient, exact.bfloat16())
    norm = stubs.GroupRMSNorm(6, group_size=3, dtype=torch.bfloat16)
    with torch.no_grad():
        norm.weight.copy_(drawn(6))
    hidden, exact_norm = drawn(9, 6).bfloat16(), stubs.GroupRMSNorm(6, group_size=3)
    exact_norm.weight.data = norm.weight.float()
    assert torch.equal(norm(hidden), exact_norm(hidden.float()).bfloat16())
    assert torch.equal(stubs.l2norm(hidden), stubs.l2norm(hidden.float()).bfloat16())


def mamba_row(zxbcdt: Tensor, seq_idx: Tensor | None) -> Tensor:
    channels = HEADS * SIZE + 2 * GROUPS * STATE
    return stubs.split_conv1d_scan(
        zxbcdt,
        drawn(channels, 4),
        drawn(channels),
        drawn(HEADS),
        -drawn(HEADS).abs(),
        D=drawn(HEADS),
        chunk_size=8,
        seq_idx=seq_idx,
        headdim=SIZE,
        ngroups=GROUPS,
        norm_before_gate=False,
    )


def test_mambas_state_restarts_where_the_sequence_index_changes() -> None:
    row = drawn(1, BOUNDS[-1], 2 * HEADS * SIZE + 2 * GROUPS * STATE + HEADS)
    index = torch.bucketize(torch.arange(BOUNDS[-1]), torch.tensor(BOUNDS[1:]), right=True)[None]
    alone = by_documents(lambda zxbcdt: mamba_row(zxbcdt, None), {"zxbcdt": row})
    torch.testing.assert_close(mamba_row(row, index), alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(mamba_row(row, None)[:, 1:8], alone[:, 1:8], atol=1e-3)


def test_mambas_scan_is_the_sum_over_earlier_tokens() -> None:
    """y_t = sum_s exp(A (d_(s+1) + ... + d_t)) d_s (B_s . C_t) x_s."""
    slots = 7
    x, dt = drawn(1, slots, HEADS, SIZE), drawn(1, slots, HEADS).abs()
    a, b, c = -drawn(HEADS).abs(), drawn(1, slots, HEADS, STATE), drawn(1, slots, HEADS, STATE).flip(1)
    first = torch.zeros(1, slots, dtype=torch.bool)
    total = (dt * a).cumsum(1)
    decay = (total[:, :, None] - total[:, None]).exp() * torch.ones(slots, slots).tril()[None, :, :, None]
    weights = decay * torch.einsum("bthn,bshn->btsh", c, b) * dt[:, None]
    right = torch.einsum("btsh,bshp->bthp", weights, x)
    torch.testing.assert_close(stubs._scan(x, dt, a, b, c, first), right, atol=1e-5, rtol=1e-5)


def test_a_state_that_is_handed_on_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="no initial or final state"):
        stubs.gated_delta_rule(**delta_inputs(), output_final_state=True)
    with pytest.raises(NotImplementedError, match="has no state"):
        stubs.causal_conv1d(drawn(1, 4, 3), drawn(3, 4), output_final_state=True)


def test_the_group_norm_norms_each_group() -> None:
    norm, hidden = stubs.GroupRMSNorm(6, eps=0.0, group_size=3), drawn(2, 6)
    halves = torch.cat([F.rms_norm(half, (3,), eps=0.0) for half in hidden.chunk(2, -1)], -1)
    torch.testing.assert_close(norm(hidden), halves)
