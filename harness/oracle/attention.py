"""Attention inside documents: rotary positions, grouped queries, windows, sinks, and the latent kind.

Shapes: t slots, n query heads, g groups of them that share a key and a value, d elements of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from harness.oracle.fields import Latent, Model, Rotary
from harness.oracle.layers import linear, norm, note, widened
from harness.oracle.rows import Places, Stream

LLAMA_LOW, LLAMA_HIGH, LLAMA_CONTEXT = 1.0, 4.0, 8192  # fixed in Megatron: RotaryEmbedding._apply_scaling


def frequencies(rotary: Rotary, size: int, dtype: torch.dtype) -> Tensor:
    """Return [rotated / 2] angles per position: base^(-2i / rotated) (RoFormer, arXiv 2104.09864, section 3.2.2).

    `size`: elements of a head, of which the first `percent` turn. Megatron-LM core_v0.19.0, RotaryEmbedding; with
    Llama 3's scaling long wave lengths are stretched by a factor, short ones stay, and those between are interpolated.
    """
    # int truncates, as upstream does; rounding would turn another element for odd products.
    rotated = int(size * rotary.percent) if rotary.percent < 1 else size
    plain = rotary.base ** (-torch.arange(0, rotated, 2, dtype=dtype) / rotated)
    if rotary.llama_factor is not None:
        wave = 2 * math.pi / plain
        share = ((LLAMA_CONTEXT / wave - LLAMA_LOW) / (LLAMA_HIGH - LLAMA_LOW)).clamp(0, 1)  # of the plain frequency
        plain = share * plain + (1 - share) * plain / rotary.llama_factor
    if rotary.yarn is not None:
        plain = rotary.yarn.stretched(plain, rotated, rotary.base)
    return plain / rotary.interpolation


def angles(positions: Tensor, rotary: Rotary, size: int, dtype: torch.dtype) -> Tensor:
    """Return [t, rotated / 2]: how far each pair of a head of `size` elements turns at positions [t], or [t, axes].

    With `sections` (time, height, width) frequency i follows height if i mod 3 is 1, width if it is 2, as far as their
    sections reach, and all others time (interleaved MRoPE of Qwen3-VL, arXiv 2511.21631, section 2; Megatron-Bridge
    0.6.2, apply_interleaved_mrope). In an image tower the frequencies are those of half a head, first times the row of
    a patch, then times its column (arXiv 2502.13923, section 2.1; Megatron-Bridge 0.6.2, rot_pos_emb).
    """
    turns = frequencies(rotary, size // 2 if rotary.planar else size, dtype)
    if rotary.planar:
        return (positions[:, :, None] * turns).flatten(1)
    if rotary.sections is None:
        return positions[:, None] * turns
    axes = [number % 3 if number < 3 * rotary.sections[number % 3] else 0 for number in range(len(turns))]
    return positions[:, axes] * turns


def rotate(x: Tensor, positions: Tensor, rotary: Rotary) -> Tensor:
    """x [t, heads, d] turned by its positions [t], or [t, axes].

    A pair of elements (a, b) turns by the angle f * position: (a cos - b sin, b cos + a sin). Pairs are elements
    (i, i + rotated / 2), or if interleaved (2i, 2i + 1) (Megatron-LM core_v0.19.0, rope_utils._rotate_half).
    """
    turns = angles(positions, rotary, x.shape[-1], widened(x).dtype)[:, None]
    # Angles are computed in the wider dtype and only then rounded, as upstream rounds its table of cosines.
    cos, sin = ((part(turns) * rotary.amplitude).to(x.dtype) for part in (torch.cos, torch.sin))
    turned, rest = x[..., : 2 * turns.shape[-1]], x[..., 2 * turns.shape[-1] :]
    if rotary.pairs_in:  # latent attention: interleaved pairs come in, halves go out
        turned = torch.cat([turned[..., 0::2], turned[..., 1::2]], dim=-1)
    if rotary.interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], dim=-1).flatten(-2)
    else:
        a, b = turned.chunk(2, dim=-1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
    return torch.cat([turned, rest], dim=-1)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segments: tuple[int, ...],
    *,
    scale: float,
    causal: bool = True,
    window: tuple[int, int] | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Attend inside each segment: query [t, n, d], key [t, g, d], value [t, g, e] to [t, n * e].

    softmax(scale * q k^T) v over a token and those before it, or over all if it is not `causal` (arXiv 1706.03762;
    Megatron-LM core_v0.19.0, DotProductAttention). `window` (before, after): a token sees at most that many before
    itself. `sink` [n]: a logit per head that joins the softmax and has no value (off-by-one: 0; arXiv 2309.17453).
    """
    share = query.shape[1] // key.shape[1]
    # Neighbouring query heads share a key: repeat_interleave, not repeat.
    key, value = (part.repeat_interleave(share, dim=1) for part in (key, value))
    mixed = []
    # One document at a time: no mask that could be wrong keeps documents apart.
    for q, k, v in zip(*(torch.split(part, list(segments)) for part in (query, key, value))):
        scores = scale * torch.einsum("qnd,knd->nqk", q, k)
        distance = torch.arange(len(q))[:, None] - torch.arange(len(q))  # how far a key is before its query
        hidden = (distance < 0) & causal
        if window is not None and window[0] >= 0:
            hidden = hidden | (distance > window[0])
        scores = scores.masked_fill(hidden, -torch.inf)
        if sink is not None:
            scores = torch.cat([scores, sink[:, None, None].expand(-1, len(q), 1)], dim=-1)
        # The sink takes its share of the softmax and is then dropped, so the weights of real keys add up to less than
        # 1.
        weights = widened(scores).softmax(-1)[..., : len(q)].to(v.dtype)
        mixed.append(torch.einsum("nqk,kne->qne", weights, v))
    return torch.cat(mixed).flatten(1)


def grouped(x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model, places: Places, number: int) -> Tensor:
    """Self-attention of layer `number` (from 1) on x [t, hidden] (Megatron-LM core_v0.19.0, SelfAttention).

    The rows of linear_qkv are, for each group in turn, its queries, its key and its value (arXiv 2305.13245).
    """
    share = model.heads // model.groups
    fused = linear(x, weights, f"{at}.linear_qkv", model).view(len(x), model.groups, share + 2, model.head)
    query = fused[:, :, :share].reshape(len(x), model.heads, model.head)
    key, value = fused[:, :, share], fused[:, :, share + 1]
    if model.qk_norm:
        query, key = norm(query, weights, f"{at}.q_layernorm", model), norm(key, weights, f"{at}.k_layernorm", model)
    if model.rotary is not None and model.turns(number):
        query, key = (rotate(part, places.positions, model.rotary) for part in (query, key))
    note(f"{at}.core_attention", "receives", query, key, value)
    mixed = attend(
        query,
        key,
        value,
        places.segments,
        scale=model.softmax_scale or model.head**-0.5,
        causal=model.causal,
        window=model.window if model.is_windowed(number) else None,
        sink=_sink(x, weights, at, model),
    )
    note(f"{at}.core_attention", "returns", mixed)
    return linear(mixed, weights, f"{at}.linear_proj", model)


def latent(
    x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model, kind: Latent, stream: Stream, number: int
) -> Tensor:
    """Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1; Megatron-LM core_v0.19.0, MLASelfAttention).

    Keys and values come up from one compressed vector; a part of each key, the same for all heads, has the positions.
    """
    down = linear(x, weights, f"{at}.linear_kv_down_proj", model)
    compressed, turning = torch.split(down, [kind.rank, kind.turned], dim=-1)
    if kind.query_rank is None:
        query = linear(x, weights, f"{at}.linear_q_proj", model)
    else:
        low = linear(x, weights, f"{at}.linear_q_down_proj", model)
        low = norm(low, weights, f"{at}.q_layernorm", model) if model.qk_norm else low
        query = linear(low, weights, f"{at}.linear_q_up_proj", model)
    compressed = norm(compressed, weights, f"{at}.kv_layernorm", model) if model.qk_norm else compressed
    still, turned = torch.split(query.view(len(x), model.heads, -1), [kind.still, kind.turned], dim=-1)
    up = linear(compressed, weights, f"{at}.linear_kv_up_proj", model).view(len(x), model.heads, -1)
    key, value = torch.split(up, [kind.still, kind.value], dim=-1)
    turned, turning = (rotate(part, stream.positions, kind.rotary) for part in (turned, turning[:, None]))
    mixed = attend(
        torch.cat([still, turned], dim=-1),
        torch.cat([key, turning.expand(-1, model.heads, -1)], dim=-1),
        value,
        stream.segments,
        scale=kind.scale,
        window=model.window if model.is_windowed(number) else None,
        sink=_sink(x, weights, at, model),
    )
    note(f"{at}.core_attention", "returns", mixed)
    return linear(mixed, weights, f"{at}.linear_proj", model)


def _sink(x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model) -> Tensor | None:
    if model.softmax == "vanilla":
        return None
    return x.new_zeros(model.heads) if model.softmax == "off-by-one" else weights[f"{at}.core_attention.softmax_offset"]
