"""CPU stubs of the kernels of recurrent layers, which exist for CUDA only: the recurrence, token by token.

    convolution      y_t = silu(b + sum_i w_i x_(t-W+1+i)); taps before the document are 0
    Gated Delta Net  S_t = a_t S_(t-1) (1 - b_t k_t k_t^T) + b_t v_t k_t^T;  o_t = S_t q_t / sqrt(size)
    Mamba-2          h_t = exp(A d_t) h_(t-1) + d_t x_t B_t^T;  y_t = (h_t C_t + D x_t) silu(z_t)

Sources: Gated Delta Networks (arXiv 2412.06464, eq. 10), Mamba-2 (arXiv 2405.21060, eq. 1 and 16); fla has
causal_conv1d and chunk_gated_delta_rule, mamba_ssm mamba_split_conv1d_scan_combined. A state is 0 at the first
token of every document: fla reads documents from cu_seqlens, mamba_ssm from seq_idx [rows, slots]. Without either, a
row is one document. Checked against torch_chunk_gated_delta_rule of megatron-core. As the kernels do, stubs compute in
float32 and round their output once (causal_conv1d_fwd.cu, mamba_ssm layernorm_gated.py).
"""

from __future__ import annotations

import ast
import importlib
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from harness.features.hybrid.pattern import GATED_DELTA, MAMBA
from harness.runtime.device import cpu_stubs


def install(pattern: str) -> list[str]:
    """Replace the kernels of the layers in a pattern, in this process; return their dotted names."""
    rows: list[tuple[Any, str, Any]] = []
    if GATED_DELTA in pattern:
        rows += _gated_delta_net()
    if MAMBA in pattern:
        rows += _mamba()
    return cpu_stubs.replace(rows)


def _gated_delta_net() -> list[tuple[Any, str, Any]]:
    whole = importlib.import_module("megatron.core.ssm.gated_delta_net")
    parts = [whole]
    if hasattr(whole, "__path__"):  # from 0.19 on
        parts = [importlib.import_module(f"{whole.__name__}.{name}") for name in ("common", "gdn")]
    stubs: dict[str, Any] = {
        "HAVE_FLA": True,
        "l2norm": l2norm,
        "causal_conv1d": causal_conv1d,
        "chunk_gated_delta_rule": gated_delta_rule,
    }
    return [(module, name, stub) for module in parts for name, stub in stubs.items() if hasattr(module, name)]


def _mamba() -> list[tuple[Any, str, Any]]:
    mixer = importlib.import_module("megatron.core.ssm.mamba_mixer")
    context = importlib.import_module("megatron.core.ssm.mamba_context_parallel")
    rows: list[tuple[Any, str, Any]] = [
        (mixer, "HAVE_MAMBA_SSM", True),
        (mixer, "mamba_split_conv1d_scan_combined", split_conv1d_scan),
        (mixer, "ExtendedRMSNorm", _extended_norm(mixer)),
        (mixer, "_check_mamba_sequence_packing_support", lambda *args, **kwargs: (True, None)),  # their versions
    ]
    if getattr(context, "tex", None) is None:
        rows.append((context, "tex", cpu_stubs.PARTITION))
        rows.append((context, "is_te_min_version", lambda *args, **kwargs: True))  # guards the use of tex
    return rows


def _extended_norm(mixer: Any) -> Any:
    """Return upstream's own class over the stub of its base, in whose absence upstream derives it from a mock."""
    source = inspect.getsource(mixer)
    (definition,) = (node for node in ast.parse(source).body if getattr(node, "name", "") == "ExtendedRMSNorm")
    names = vars(mixer) | {"RMSNormGated": GroupRMSNorm}
    # Upstream's own source, not a copy: its import of mamba_ssm has failed, and with it the class that it derives.
    exec(compile(ast.Module([definition], []), mixer.__file__, "exec"), names)
    return names["ExtendedRMSNorm"]


def first_tokens(shape: torch.Size, cu_seqlens: Tensor | None, seq_idx: Tensor | None = None) -> Tensor:
    """Return [rows, slots] boolean: whether a slot is the first of its document."""
    first = torch.zeros(shape[:2], dtype=torch.bool)
    first[:, 0] = True
    if cu_seqlens is not None:
        begins = cu_seqlens.long()
        # The last offset is the end of the row; padded offsets may repeat it.
        first[:, begins[begins < shape[1]]] = True
    if seq_idx is not None:
        first[:, 1:] |= seq_idx[:, 1:] != seq_idx[:, :-1]
    return first


def l2norm(x: Tensor, eps: float = 1e-6, **_: Any) -> Tensor:
    """Return x / sqrt(|x|^2 + eps) over the last dimension, as fla.modules.l2norm."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cu_seqlens: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
) -> tuple[Tensor, None]:
    """Convolve as fla.modules.convolution.causal_conv1d: x [rows, slots, channels], weight [channels, taps]."""
    if initial_state is not None or output_final_state:
        # States carry over between calls in inference only.
        raise NotImplementedError("the CPU stub of causal_conv1d has no state")
    return _convolved(x, weight, bias, first_tokens(x.shape, cu_seqlens), activation), None


def _convolved(x: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor, activation: str | None) -> Tensor:
    taps, document, wide, kernel = weight.shape[1], first.cumsum(1), x.float(), weight.float()
    total = torch.zeros_like(wide) if bias is None else bias.float().expand_as(x)
    for back in range(min(taps, x.shape[1])):
        earlier = F.pad(wide[:, : x.shape[1] - back], (0, 0, back, 0))
        # Zeros stand before the row, and documents count from 1, so taps before the row belong to no document.
        same = document == F.pad(document[:, : x.shape[1] - back], (back, 0))
        total = total + kernel[:, taps - 1 - back] * earlier * same[..., None]
    return (F.silu(total) if activation in ("silu", "swish") else total).to(x.dtype)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute fla's chunk_gated_delta_rule: q, k, v [rows, slots, heads, size]; g (log of decay), beta without size."""
    if initial_state is not None or output_final_state:
        raise NotImplementedError("the CPU stub of the gated delta rule has no initial or final state")
    dtype = v.dtype
    if use_qk_l2norm_in_kernel:
        q, k = l2norm(q), l2norm(k)
    q, k, v, g, beta = (part.float() for part in (q, k, v, g, beta))
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    decay = g.exp() * ~first_tokens(v.shape, cu_seqlens)[..., None]  # 0 forgets the document before
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    out = []
    for t in range(v.shape[1]):
        state = state * decay[:, t, :, None, None]
        change = (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * change[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1).to(dtype), None


def split_conv1d_scan(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor,
    dt_bias: Tensor,
    a: Tensor,
    *,
    seq_idx: Tensor | None = None,
    activation: str = "silu",
    headdim: int | None = None,
    ngroups: int = 1,
    **more: Any,
) -> Tensor:
    """Compute mamba_ssm's mamba_split_conv1d_scan_combined: [rows, slots, z x B C dt] to [rows, slots, heads *
    headdim].
    """
    dtype, heads, skip = zxbcdt.dtype, len(a), more["D"]
    inner = heads * headdim if headdim else skip.numel()
    state = (zxbcdt.shape[-1] - 2 * inner - heads) // (2 * ngroups)
    z, convolved, dt = torch.split(zxbcdt, [inner, inner + 2 * ngroups * state, heads], -1)
    first = first_tokens(zxbcdt.shape, None, seq_idx)
    convolved = _convolved(convolved, conv1d_weight, conv1d_bias, first, activation)
    x, b, c = torch.split(convolved, [inner, ngroups * state, ngroups * state], -1)
    x, b, c = (
        part.float().reshape(*part.shape[:2], count, -1) for part, count in ((x, heads), (b, ngroups), (c, ngroups))
    )
    b, c = (part.repeat_interleave(heads // ngroups, 2) for part in (b, c))
    y = _scan(x, F.softplus(dt.float() + dt_bias), a, b, c, first) + skip.view(heads, -1) * x
    gated: Tensor = y.flatten(2) * F.silu(z.float())
    return gated.to(dtype)


def _scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, first: Tensor) -> Tensor:
    """Scan x [rows, slots, heads, size], dt [rows, slots, heads], a [heads], b and c [rows, slots, heads, state]."""
    decay = (dt * a).exp() * ~first[..., None]
    state = x.new_zeros(x.shape[0], x.shape[2], x.shape[3], b.shape[-1])
    out = []
    for t in range(x.shape[1]):
        added = (x[:, t] * dt[:, t, :, None])[..., None] * b[:, t, :, None]
        state = state * decay[:, t, :, None, None] + added
        out.append(torch.einsum("bhpn,bhn->bhp", state, c[:, t]))
    return torch.stack(out, 1)


class GroupRMSNorm(torch.nn.Module):
    """mamba_ssm RMSNormGated without a gate: root mean square norm over groups of `group_size` channels."""

    def __init__(self, hidden_size: int, eps: float = 1e-5, group_size: int = 0, **more: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=more.get("dtype")))
        self.eps, self.group_size = eps, group_size

    def forward(self, hidden: Tensor) -> Tensor:
        groups = hidden.float().reshape(*hidden.shape[:-1], -1, self.group_size)
        normed = F.rms_norm(groups, (self.group_size,), None, self.eps).flatten(-2)
        return (normed * self.weight.float()).to(hidden.dtype)
