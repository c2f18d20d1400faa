"""Layers that carry a state from token to token: Gated Delta Net and Mamba-2, token by token.

The state is 0 at the first slot of every segment, and a convolution sees no slot before it. Shapes: t slots, n heads, k
elements of a key, v of a value.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.oracle.fields import DeltaNet, Mamba, Model
from harness.oracle.layers import linear, norm, widened
from harness.oracle.rows import Stream

DELTA_EPSILON = 1e-6  # fla.modules.l2norm
MAMBA_EPSILON = 1e-5  # of the norm behind the heads: MambaMixer.__init__


def delta_net(
    x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model, kind: DeltaNet, stream: Stream
) -> Tensor:
    """Gated Delta Net on x [t, hidden] (arXiv 2412.06464, figure 1; Megatron-LM core_v0.19.0, GatedDeltaNet).

    The rows of in_proj are queries, keys, values, gates, and per head of values beta and the time step. Queries and
    keys have length 1; a head of keys serves several heads of values.
    """
    keys, values = kind.key_heads * kind.key, kind.heads * kind.value
    projected = linear(x, weights, f"{at}.in_proj", model)
    mixed, gate, beta, step = torch.split(projected, [2 * keys + values, values, kind.heads, kind.heads], dim=-1)
    mixed = convolved(mixed, weights[f"{at}.conv1d.weight"], None, stream.segments)
    query, key, value = torch.split(mixed, [keys, keys, values], dim=-1)
    share = kind.heads // kind.key_heads
    query, key = (_unit(part.view(len(x), -1, kind.key)).repeat_interleave(share, dim=1) for part in (query, key))
    decay = torch.exp(-weights[f"{at}.A_log"].exp() * F.softplus(widened(step) + weights[f"{at}.dt_bias"]))
    # fla's kernels scale queries, not scores; there is no softmax that would make the two alike.
    query = widened(query) * kind.key**-0.5
    read = delta_rule(query, key, value.view(len(x), -1, kind.value), decay, beta.sigmoid(), stream.segments)
    normed = norm(read.to(x.dtype), weights, f"{at}.out_norm", model) * F.silu(widened(gate)).view_as(read)
    return linear(normed.to(x.dtype).flatten(1), weights, f"{at}.out_proj", model)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, segments: tuple[int, ...]
) -> Tensor:
    """S_t = a_t S_(t-1) (1 - b_t k_t k_t^T) + b_t v_t k_t^T; o_t = S_t q_t (arXiv 2412.06464, equation 10).

    query and key [t, n, k], value [t, n, v], decay a and beta b [t, n] to [t, n, v].
    """
    parts = [torch.split(widened(part), list(segments)) for part in (query, key, value, decay, beta)]
    read = []
    for q, k, v, a, b in zip(*parts):
        state = v.new_zeros(v.shape[1], v.shape[2], k.shape[2])
        for slot in range(len(q)):
            state = state * a[slot, :, None, None]
            # Equation 10 in another order: what the state lacks of the value is written, so that k k^T is never built.
            missing = v[slot] - torch.einsum("nvk,nk->nv", state, k[slot])
            state = state + b[slot, :, None, None] * missing[:, :, None] * k[slot, :, None]
            read.append(torch.einsum("nvk,nk->nv", state, q[slot]))
    return torch.stack(read)


def mamba(x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model, kind: Mamba, stream: Stream) -> Tensor:
    """Mamba-2 on x [t, hidden] (arXiv 2405.21060, section 7.1; Megatron-LM core_v0.19.0, MambaMixer).

    The rows of in_proj are gates, inputs, B, C, and the time step of each head; a group of heads shares B and C. The
    norm behind the heads is over the elements of a group.
    """
    inner, shared = kind.heads * kind.size, kind.groups * kind.state
    projected = linear(x, weights, f"{at}.in_proj", model)
    gate, mixed, step = torch.split(projected, [inner, inner + 2 * shared, kind.heads], dim=-1)
    mixed = convolved(mixed, weights[f"{at}.conv1d_weight"], weights[f"{at}.conv1d_bias"], stream.segments)
    given, into, out_of = torch.split(mixed, [inner, shared, shared], dim=-1)
    given = widened(given).view(len(x), kind.heads, kind.size)
    into, out_of = (
        widened(part).view(len(x), kind.groups, kind.state).repeat_interleave(kind.heads // kind.groups, dim=1)
        for part in (into, out_of)
    )
    time = F.softplus(widened(step) + weights[f"{at}.dt_bias"])
    read = scan(given, time, -widened(weights[f"{at}.A_log"]).exp(), into, out_of, stream.segments)
    read = read + weights[f"{at}.D"][:, None] * given
    # Rounded to the model's dtype before the norm, as upstream hands it to the next kernel.
    gated = widened((read.flatten(1) * F.silu(widened(gate))).to(x.dtype)).view(len(x), kind.groups, -1)
    normed = gated * (gated.square().mean(-1, keepdim=True) + MAMBA_EPSILON).rsqrt()
    return linear((normed.flatten(1) * weights[f"{at}.norm.weight"]).to(x.dtype), weights, f"{at}.out_proj", model)


def scan(given: Tensor, time: Tensor, rate: Tensor, into: Tensor, out_of: Tensor, segments: tuple[int, ...]) -> Tensor:
    """h_t = exp(A d_t) h_(t-1) + d_t x_t B_t^T; y_t = h_t C_t (arXiv 2405.21060, equations 1 and 16).

    given x [t, n, size], time d [t, n], rate A [n], into B and out_of C [t, n, state] to [t, n, size].
    """
    decay = (time * rate).exp()
    read = []
    for x, d, a, b, c in zip(*(torch.split(part, list(segments)) for part in (given, time, decay, into, out_of))):
        state = x.new_zeros(*x.shape[1:], b.shape[2])
        # One slot at a time, not in chunks as kernels do: the chunked form is what a cell tests.
        for slot in range(len(x)):
            state = state * a[slot, :, None, None] + (x[slot] * d[slot, :, None])[:, :, None] * b[slot, :, None]
            read.append(torch.einsum("nps,ns->np", state, c[slot]))
    return torch.stack(read)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, segments: tuple[int, ...]) -> Tensor:
    """silu(b + sum_i w_i x_(t - taps + 1 + i)) of each channel: x [t, channels], weight [channels, 1, taps].

    Kernels sum in float32 at least, gradients of weights too, and round once (causal_conv1d 1.6, causal_conv1d_fwd.cu,
    causal_conv1d_bwd; fla.modules.convolution).
    """
    taps, kernel, offset = weight.shape[-1], widened(weight), None if bias is None else widened(bias)
    parts = []
    for part in torch.split(widened(x), list(segments)):
        # Zeros before the segment, not the slots of the document before it.
        padded = F.pad(part.T, (taps - 1, 0))
        parts.append(F.conv1d(padded, kernel, offset, groups=len(weight)).T)
    return F.silu(torch.cat(parts)).to(x.dtype)


def _unit(x: Tensor) -> Tensor:
    wide = widened(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + DELTA_EPSILON).rsqrt()).to(x.dtype)
