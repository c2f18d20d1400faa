"""The attention kernels that a cell may request, and their limits. Pure.

| kind | kernel | needs |
|---|---|---|
| reference | the harness's own, exact, any dtype (harness/features/attention/node_reference.py) | nothing |
| varlen | torch.nn.attention.varlen.varlen_attn: FlashAttention or cuDNN inside torch | CUDA, torch 2.10, bf16 |
| te | Transformer Engine, which chooses among its back ends | CUDA, transformer-engine |
| te-flash | Transformer Engine with FlashAttention alone | CUDA, transformer-engine, flash-attn, bf16 |
| te-fused | Transformer Engine with cuDNN alone | CUDA, transformer-engine, bf16 |
| auto | te-fused and te-flash by Transformer Engine's choice, else varlen, else reference | nothing |

A limit returns a reason with the arithmetic, or None. Limits that only the node can check are in
harness/features/attention/node_kinds.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from harness.core.cell.axis_values import ATTENTIONS, KERNELS, TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import PackedParams, zigzag
from harness.features.attention.config import VANILLA

__all__ = ["ATTENTIONS", "KERNELS", "TE_KINDS"]

HALF_ONLY = ("te-flash", "te-fused", "varlen")
HEAD_MULTIPLE, HEAD_MOST = 8, 256  # elements of one head
IGNORED_TAIL = (2, 16)  # the last Transformer Engine that does not detect padding after the last document


@dataclass(frozen=True)
class Limit:
    """A limit of kernels; `predicate` returns why a cell with an attention in KERNELS cannot be computed, or None."""

    id: str
    source: str
    predicate: Callable[[CellConfig], str | None]


def kernel_device(config: CellConfig) -> str | None:
    if config.device != "cpu":
        return None
    return f"attention {config.attention} has CUDA kernels only, and device is cpu; use attention: reference"


def kernel_dtype(config: CellConfig) -> str | None:
    if config.attention not in HALF_ONLY or config.dtype != "fp32":
        return None
    return f"attention {config.attention} supports only 16-bit dtypes, not fp32; use dtype: bf16"


def kernel_head_size(config: CellConfig) -> str | None:
    return _head_size(config) if config.attention in HALF_ONLY else None


def _head_size(config: CellConfig) -> str | None:
    """Return why neither FlashAttention nor cuDNN supports heads of this size; None if they do."""
    if config.model.mla:
        return None
    model, size = config.model, config.model.head
    sizes = f"model.head_size {size}"
    if model.head_size is None:
        sizes = f"model.hidden {model.hidden} / model.heads {model.heads} = {size} per head"
    if size % HEAD_MULTIPLE:
        return f"{sizes}, not divisible by {HEAD_MULTIPLE}: {size} = {size // 8} * 8 + {size % 8}"
    return f"{sizes}, more than {HEAD_MOST}" if size > HEAD_MOST else None


def _unfused(config: CellConfig) -> str | None:
    """Return why Transformer Engine must use UnfusedDotProductAttention, which supports any dtype and size; None if
    not.
    """
    if config.attention != "te":
        return None
    return "dtype fp32" if config.dtype == "fp32" else _head_size(config)


def kernel_latent(config: CellConfig) -> str | None:
    mla = config.model.mla
    if mla is None:
        return None
    query = mla.qk_head_dim + mla.qk_pos_emb_head_dim
    return (
        f"latent attention has queries of {mla.qk_head_dim} + {mla.qk_pos_emb_head_dim} = {query} and values of "
        f"{mla.v_head_dim} per head, and which kernels take two sizes depends on the hardware; use attention: reference"
    )


def kernel_sinks(config: CellConfig) -> str | None:
    if config.attention != "varlen" or config.model.softmax == VANILLA:
        return None
    return f"model.softmax is {config.model.softmax}: torch's varlen_attn has no sinks; use attention: reference or te"


def kernel_vision(config: CellConfig) -> str | None:
    if config.model.vision is None:
        return None
    return (
        f"model.vision with attention {config.attention}: the tower has Megatron's local layers, since those that "
        "upstream gives it, Transformer Engine's, compute on a GPU only, and the probe does not mix them; use "
        "attention: reference"
    )


def kernel_windows(config: CellConfig) -> str | None:
    if config.attention != "varlen" or config.model.window is None:
        return None
    return f"model.window is {config.model.window}, which attention varlen is not given; use attention: reference or te"


def kernel_context_parallel(config: CellConfig) -> str | None:
    cp = config.layout.cp
    if cp == 1:
        return None
    if config.attention == "varlen":
        return f"cp {cp}: torch's varlen_attn sees only the 1/{cp} of each document that is on its rank"
    if config.attention in TE_KINDS and config.style.split is not zigzag:
        return (
            f"cp {cp}, and {config.data_path} does not split rows as Transformer Engine does; use attention: reference"
        )
    if why := _unfused(config):
        return f"cp {cp} with {why}: Transformer Engine computes that unfused, which supports no context parallelism"
    return None


def kernel_padding(config: CellConfig) -> str | None:
    if not (why := _unfused(config)) or not (found := first_padded(config)):
        return None
    return f"{found}, and {why}: Transformer Engine computes that unfused, which supports no padding between documents"


def first_padded(config: CellConfig) -> str:
    """Return the first micro-batch whose offsets of real tokens differ from its offsets of slots, as text;
    empty: none.
    """
    if not config.style.real_lengths:
        return ""
    for step, number, params in _packed_micro_batches(config):
        if params.cu_seqlens_q_padded not in (None, params.cu_seqlens_q):
            real, slots = params.cu_seqlens_q[-1], (params.cu_seqlens_q_padded or (0,))[-1]
            return f"micro-batch {number} of step {step} holds {real} real tokens in {slots} slots"
    return ""


def _packed_micro_batches(config: CellConfig) -> Iterator[tuple[int, int, PackedParams]]:
    """(step, number in the step, metadata) of every packed micro-batch.

    Ends at a step whose documents make no rows for this layout: another rule rejects that.
    """
    # A cell without steps still fetches those of step 0.
    for step in range((config.train.steps or 1) if config.style.packed else 0):
        try:
            batches = [batch for replica in config.micro_batches(step) for batch in replica]
        except ValueError:
            return
        for number, batch in enumerate(batches):
            if (params := batch.params()) is not None:
                yield step, number, params


def te_auto_padding(version: tuple[int, ...], config: CellConfig, explicit: bool) -> str | None:
    """Return why a Transformer Engine of this version would compute padded documents wrongly; None if it would not.

    `explicit`: the metadata sets pad_between_seqs, so Transformer Engine does not guess it.
    """
    if (
        config.attention not in TE_KINDS
        or explicit
        or version[:2] > IGNORED_TAIL
        or not (found := first_padded(config))
    ):
        return None
    return (
        f"{found} without pad_between_seqs, and Transformer Engine {'.'.join(map(str, version))} <= "
        f"{'.'.join(map(str, IGNORED_TAIL))} overlooks padding after the last document (issue 3331)"
    )


# From this many documents x heads x longest^2 of packed rows, cuDNN on sm90 has no deterministic kernel.
MAX_SCORES = 2**30


def te_deterministic(config: CellConfig, capability: tuple[int, int]) -> str | None:
    """Return why Transformer Engine, limited to deterministic kernels, has no cuDNN kernel for a packed micro-batch.

    `te` would use another kernel for that micro-batch alone, so it is refused like `te-fused`. The factors are B, H and
    Smax of cuDNN's back end: documents of the micro-batch, heads of the rank, longest document in slots.
    """
    if config.attention not in ("te", "te-fused") or capability != (9, 0) or not config.style.packed:
        return None
    heads = config.model.heads // config.layout.tp
    for step, number, params in _packed_micro_batches(config):
        documents, longest = len(params.cu_seqlens_q) - 1, params.max_seqlen_q
        if (scores := documents * heads * longest**2) >= MAX_SCORES:
            counted = f"{documents} documents x {heads} heads x {longest}^2 = {scores} >= 2^30"
            return (
                f"micro-batch {number} of step {step}: {counted}, from which cuDNN on sm90 has no deterministic "
                "kernel for packed rows; shorten documents, or set NVTE_ALLOW_NONDETERMINISTIC_ALGO=1"
            )
    return None


TE_DETERMINISTIC = ("attention.te-deterministic", "Transformer Engine 2.20 fused attention: deterministic THD on sm90")
TE_PADDING = ("attention.te-padding", "Transformer Engine issue 3331: pad_between_seqs is guessed, up to 2.16")
LIMITS: tuple[Limit, ...] = (
    Limit("attention.kernel-device", "Transformer Engine and torch varlen_attn: CUDA kernels", kernel_device),
    Limit(
        "attention.kernel-dtype",
        "torch varlen.py: float16 or bfloat16; Transformer Engine get_attention_backend: FP16/BF16",
        kernel_dtype,
    ),
    Limit(
        "attention.kernel-head-size",
        "FlashAttention and cuDNN: head sizes divisible by 8, up to 256",
        kernel_head_size,
    ),
    Limit(
        "attention.kernel-latent",
        "harness: which kernels take two head sizes is not known before a cell runs; Megatron-LM pads values "
        "(5dcda195a5)",
        kernel_latent,
    ),
    Limit("attention.kernel-sinks", "torch varlen_attn: a plain softmax", kernel_sinks),
    Limit(
        "attention.kernel-vision",
        "Megatron-Bridge Qwen3VLModel.__init__: get_vit_layer_with_transformer_engine_spec",
        kernel_vision,
    ),
    Limit("attention.kernel-windows", "harness: what it passes to torch's varlen_attn", kernel_windows),
    Limit(
        "attention.kernel-cp",
        "torch varlen_attn has no context parallelism; Transformer Engine: none in UnfusedDotProductAttention",
        kernel_context_parallel,
    ),
    Limit(
        "attention.te-padding-unfused",
        "Transformer Engine get_attention_backend: no UnfusedDotProductAttention with pad_between_seqs",
        kernel_padding,
    ),
)


def kind_of(text: str) -> str | None:
    """Return the kind of attention that a rank recorded, e.g. of "Transformer Engine 2.20.2, te-fused"; None if it is
    none.
    """
    if text == "harness reference attention":
        return "reference"
    if text.startswith("torch varlen_attn "):
        return "varlen"
    kind = text.rpartition(", ")[2] if text.startswith("Transformer Engine ") else ""
    return kind if kind in TE_KINDS else None


def possible_kinds(config: CellConfig, device: str) -> tuple[str, ...]:
    """Return the kinds that a cell may use on a device ("cuda" or "cpu"): the one it asks for, or what `auto` may
    choose.
    """
    if config.attention != "auto":
        return (config.attention,)
    tried = ("te", "varlen") if device == "cuda" and config.dtype == "bf16" else ()
    return (*(kind for kind in tried if not limits(replace(config, attention=kind))), "reference")


def limits(config: CellConfig) -> list[tuple[Limit, str]]:
    """Return every limit that the cell violates, with the reason; none for `auto` and `reference`."""
    if config.attention not in KERNELS:
        return []
    return [(limit, reason) for limit in LIMITS if (reason := limit.predicate(config)) is not None]
