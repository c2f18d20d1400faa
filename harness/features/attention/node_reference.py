"""The probe's attention modules, which are passed as `core_attention` of a layer spec: their base class, attention in
plain torch document by document, and torch's own kernel for rows of several lengths.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import megatron.core.transformer.utils as upstream_utils
import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from harness.core.packing.arithmetic import Split, zigzag
from harness.features.attention.config import VANILLA


def sink_of_upstream(config: Any, layer_number: int, groups: dict[str, Any]) -> Tensor | None:
    """Return the logit that upstream adds to each head's scores, [local heads]: a parameter if it is learnable.

    Its creation is upstream's, and with it what upstream knows of the parameter: whether it is split over tp. None
    without sinks. `groups`: the keyword arguments that carry process groups.
    """
    if getattr(config, "softmax_type", VANILLA) == VANILLA:
        return None
    alone = copy.copy(config)
    alone.context_parallel_size = 1  # upstream's module refuses more, in its forward only
    module = DotProductAttention(alone, layer_number, AttnMaskType.causal, "self", **groups)
    sink: Tensor = module.softmax_offset
    return sink


def window_of_upstream(config: Any, layer_number: int) -> int | None:
    """Return the tokens before its own that a token of this layer attends to; None: all. `layer_number`: from 1."""
    window = getattr(config, "window_size", None)
    return None if window is None or not is_window_layer(config, layer_number) else int(window[0])


def is_window_layer(config: Any, layer_number: int) -> bool:
    """Return whether a layer of a model with windows has one: upstream's decision, in releases that have exceptions
    (0.15).
    """
    if not hasattr(config, "window_attn_skip_freq"):
        return True
    return bool(
        upstream_utils.is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
    )


class CoreAttention(MegatronModule, ABC):  # type: ignore[misc]
    """Has the interface of megatron.core.transformer.dot_product_attention.DotProductAttention (0.14 to 0.19).

    Without packed_seq_params it attends over the whole row, so that documents leak into each other as in upstream.
    """

    def __init__(self, config: Any, layer_number: int, softmax_scale: float | None = None, **more: Any) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.softmax_scale = softmax_scale
        self.attn_mask_type = more.get("attn_mask_type")  # for calls that pass none
        groups = {name: value for name, value in more.items() if name == "pg_collection"}
        self.groups = groups.get("pg_collection")
        self.softmax_offset = sink_of_upstream(config, layer_number, groups)
        self.window = window_of_upstream(config, layer_number)

    @property
    def cp_group(self) -> ProcessGroup:
        """The context-parallel group: the model's, or Megatron's global one in releases that pass none to attention."""
        group: ProcessGroup = getattr(self.groups, "cp", None) or parallel_state.get_context_parallel_group()
        return group

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """Attend: [t, heads, dim] (packed, THD) to [t, heads * dim], or [s, b, heads, dim] (unpacked) to [s, b, heads *
        dim].

        Packed inputs may also be [t, 1, heads, dim]. Masks and bias are ignored: attention is causal inside segments,
        which are bounded by cu_seqlens_q_padded if it is set, else by cu_seqlens_q.
        """
        if packed_seq_params is None:
            return self.unpacked(query, key, value)
        padded = packed_seq_params.cu_seqlens_q_padded
        # Padded offsets are where documents start in memory; real ones only say how many of their slots count.
        offsets = packed_seq_params.cu_seqlens_q if padded is None else padded
        query, key, value = (part.squeeze(1) if part.dim() == 4 else part for part in (query, key, value))
        return self.packed(query, key, value, offsets, packed_seq_params)

    @abstractmethod
    def unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend over whole rows: [s, b, heads, dim] to [s, b, heads * dim]."""

    @abstractmethod
    def packed(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, params: Any) -> Tensor:
        """Attend inside segments: [t, heads, dim] to [t, heads * dim].

        `offsets`: [segments + 1] int32, bounds of the segments in the merged row; `params`: the PackedSeqParams.
        """


PART = 1024  # query slots per part; longer rows are split into parts


# Reference packed attention: exact, causal per document, context-parallel aware, for any device and dtype; with sinks
# and windows.
#
# Megatron's local DotProductAttention refuses packed_seq_params and context parallelism, and Transformer Engine needs a
# GPU; layer specs get this module instead.
class GatherContext(torch.autograd.Function):
    """All-gather [...] to [ranks, ...]; backward all-reduces the gradient and returns this rank's part."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(local) for _ in range(group.size())]
        dist.all_gather(parts, local.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].contiguous()
        # Every rank used every key, so each key's gradient is the sum over ranks.
        dist.all_reduce(grad, group=ctx.group)
        return grad[ctx.group.rank()], None


class ReferenceAttention(CoreAttention):
    """Exact causal attention inside each segment, as one masked product per part of the row."""

    split: Split = staticmethod(zigzag)  # of the cell's data path; the probe sets it

    def packed(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, params: Any) -> Tensor:
        batched = [part.unsqueeze(1) for part in (query, key, value)]
        return self._attend(*batched, bounds=offsets.tolist()).squeeze(1)

    def unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        slots = query.size(0) * self.cp_group.size()
        return self._attend(query, key, value, bounds=[0, slots])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, bounds: list[int]) -> Tensor:
        """Attend causally inside each segment; inputs [s, b, heads, dim]: this context-parallel rank's slots."""
        own_slots = torch.arange(bounds[-1], device=query.device)
        group = self.cp_group
        if group.size() > 1:
            shares = [torch.tensor(self.split(bounds, group.size(), rank)) for rank in range(group.size())]
            own_slots = shares[group.rank()].to(query.device)
            # Ranks may hold chunks of both ends of a document; argsort puts the gathered slots back in their order.
            order = torch.argsort(torch.cat(shares)).to(query.device)
            sizes = [key.size(-1), value.size(-1)]  # latent attention may have others for values
            gathered = GatherContext.apply(torch.cat([key, value], -1), group)  # [cp, s, b, kv, dims]
            key, value = gathered.flatten(0, 1)[order].split(sizes, -1)
        repeats = query.size(2) // key.size(2)
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))  # [b, heads, s, dim]
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        mask = partial(_segment_mask, bounds, window=self.window)
        out = _in_parts(query, key, value, own_slots, mask, self.softmax_scale, self.softmax_offset)
        return out.permute(2, 0, 1, 3).flatten(2)


def _in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own_slots: Tensor,
    mask_of: Callable[[Tensor], Tensor],
    scale: float | None,
    sink: Tensor | None = None,
) -> Tensor:
    """Attend over [b, heads, s, dim] with a mask of query slots.

    `sink`: a further logit per head, whose share of the weights is dropped.

    The mask has s x total entries, so long rows are processed in parts, and a part's mask is recomputed in backward.
    """
    if sink is not None:  # a key without a value, whose score is the mask's last column
        key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))

    def part(query: Tensor, key: Tensor, value: Tensor, own_slots: Tensor) -> Tensor:
        mask = mask_of(own_slots)
        if sink is not None:
            mask = _with_sink(mask, sink.to(query.dtype))
        with sdpa_kernel(SDPBackend.MATH):  # cuDNN and fused kernels round differently
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)

    if len(own_slots) <= PART:
        return part(query, key, value, own_slots)
    parts = zip(torch.split(query, PART, 2), torch.split(own_slots, PART))
    done = [
        # The reentrant form would not pass gradients to the sink, which is no argument of `part`.
        checkpoint(part, some, key, value, slots, use_reentrant=False, preserve_rng_state=False)
        for some, slots in parts
    ]
    return torch.cat(done, 2)


def _with_sink(mask: Tensor, sink: Tensor) -> Tensor:
    """Return what is added to scores, [1, heads, s, total + 1]: from a boolean mask [s, total] and a logit per head."""
    added = torch.zeros(mask.shape, dtype=sink.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    heads, (slots, total) = len(sink), mask.shape
    columns = [added.expand(1, heads, slots, total), sink.view(1, heads, 1, 1).expand(1, heads, slots, 1)]
    return torch.cat(columns, -1)


def _segment_mask(bounds: list[int], own_slots: Tensor, *, window: int | None = None) -> Tensor:
    """Return boolean [len(own_slots), total]: whether a slot is in the same segment, not later, and not before the
    window.
    """
    slots = torch.arange(bounds[-1], device=own_slots.device)
    segment = torch.searchsorted(torch.tensor(bounds[1:], device=own_slots.device), slots, right=True)
    same = segment[own_slots][:, None] == segment[None, :]
    back = own_slots[:, None] - slots[None, :]
    visible = same & (back >= 0)
    return visible if window is None else visible & (back <= window)


# Attention by torch's variable-length kernels (FlashAttention, or cuDNN on Hopper and Blackwell).
#
# | torch | varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, ...) |
# |---|---|
# | 2.10 | is_causal |
# | from 2.11 | window_size (-1, 0) for causal, scale; enable_gqa in later releases, read from the signature |
#
# Checked against the source of torch 2.15. The kernels take fp16 and bf16 on CUDA and have not been run yet; on the CPU
# the module is tested with an implementation of the same contract.
def varlen_functions() -> Any:
    """Return torch.nn.attention.varlen; ImportError before torch 2.10."""
    import torch.nn.attention.varlen as module

    return module


class VarlenAttention(CoreAttention):
    """Attention over the slots of each document: padding follows the tokens, so causality keeps it out of them.

    Nothing is read from the GPU: offsets stay on the device, and max_seqlen is an int.
    """

    def packed(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, params: Any) -> Tensor:
        longest = int(params.max_seqlen_q)
        return self._attend(query, key, value, offsets=offsets, longest=longest).flatten(1)

    def unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, rows = query.shape[:2]
        offsets = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=query.device)
        parts = [part.transpose(0, 1).flatten(0, 1) for part in (query, key, value)]
        out = self._attend(*parts, offsets=offsets, longest=length)
        return out.view(rows, length, -1).transpose(0, 1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, offsets: Tensor, longest: int) -> Tensor:
        """Attend over [t, heads, dim], `offsets` [segments + 1] int32; key and value may have fewer heads (GQA)."""
        attend = varlen_functions().varlen_attn
        accepted = inspect.signature(attend).parameters
        more: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in accepted else {"is_causal": True}
        if self.softmax_scale is not None:
            more["scale"] = self.softmax_scale
        if key.size(1) != query.size(1):
            if "enable_gqa" in accepted:
                more["enable_gqa"] = True
            else:
                repeats = query.size(1) // key.size(1)
                key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        # The same offsets tensor for queries and keys: otherwise cuDNN refuses causal packed rows.
        parts = (part.contiguous() for part in (query, key, value))
        out: Tensor = attend(*parts, offsets, offsets, longest, longest, **more)
        return out
