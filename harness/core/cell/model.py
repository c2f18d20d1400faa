"""The model of a cell: a small GPT, dense or with experts, multi-token prediction or latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from harness.core.cell.axis_values import BUILDERS
from harness.core.cell.layout import Layers
from harness.core.setting import count, setting
from harness.features.adapters.config import PeftConfig
from harness.features.attention.config import SOFTMAXES, VANILLA, MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.hybrid.pattern import CUT, EXPERTS, checked_pattern, layers_of
from harness.features.prediction.config import MtpConfig
from harness.features.vision.config import VisionConfig

NORMS = ("RMSNorm", "LayerNorm")
ROTARY = "rope"
LEARNED = "learned_absolute"
POSITIONS = (ROTARY, LEARNED, "none")
OF_ROTARY = ("rotary_percent", "rotary_interpolation", "rotary_interleaved", "rope_scaling", "no_rope_freq")


class Activation(NamedTuple):
    """What a feed-forward block does between its linear layers."""

    function: str  # of torch.nn.functional or megatron-core
    gated: bool


ACTIVATIONS = {
    "swiglu": Activation("silu", True),
    "gelu": Activation("gelu", False),
    "squared_relu": Activation("squared_relu", False),
    "quick_geglu": Activation("quick_gelu", True),
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A GPT; by default with RMSNorm, SwiGLU and rotary positions, without biases."""

    layers: int = count(4, "Transformer layers.", le=1_024, upstream="num_layers")
    hidden: int = count(64, "Hidden size.", le=2**17, upstream="hidden_size")
    heads: int = count(
        8, "Attention heads; must divide hidden unless head_size is given.", le=4_096, upstream="num_attention_heads"
    )
    kv_heads: int = count(
        4,
        "Key/value heads (query groups); must divide heads. With tp above them, several tp ranks have the same one.",
        le=4_096,
        upstream="num_query_groups",
    )
    ffn: int = count(128, "Hidden size of the feed-forward block.", le=2**20, upstream="ffn_hidden_size")
    vocab: int = count(128, "Vocabulary size.", ge=8, le=2**24, aliases=("vocab_size", "padded_vocab_size"))
    rope_base: int = count(10_000, "Base of the rotary positions.", le=10**12, aliases=("rotary_base",))
    tied: bool = setting(
        False,
        doc="Embedding and output layer share their weights.",
        aliases=("share_embeddings_and_output_weights",),
    )
    head_size: int | None = count(
        None,
        "Elements of an attention head; if omitted, hidden / heads.",
        le=2**14,
        upstream="kv_channels",
        aliases=("head_dim",),
        later=True,
    )
    position_embedding: str = setting(
        ROTARY,
        doc="Positions: rotary, a learned embedding of each, or none.",
        choices=POSITIONS,
        aliases=("position_embedding_type",),
        later=True,
    )
    rotary_percent: float = setting(
        1.0,
        doc="Part of each head that rotary positions turn.",
        gt=0,
        le=1,
        aliases=("partial_rotary_factor",),
        later=True,
    )
    rotary_interpolation: int | None = count(
        None,
        "Rotary positions are divided by it; if omitted, they are not.",
        le=2**20,
        aliases=("rotary_seq_len_interpolation_factor", "seq_len_interpolation_factor"),
        later=True,
    )
    rotary_interleaved: bool = setting(
        False,
        doc="Rotary positions turn elements 2i and 2i + 1 of a head together, not those half a head apart.",
        upstream="rotary_interleaved",
        later=True,
    )
    rope_scaling: bool = setting(
        False, doc="Llama 3 scales the frequencies of rotary positions.", aliases=("use_rope_scaling",), later=True
    )
    rope_scaling_factor: float = setting(
        8.0, doc="With `rope_scaling`: the factor of the lowest frequencies.", ge=1, le=1e6, later=True
    )
    no_rope_freq: int | None = count(
        None,
        "Every N-th layer has no rotary positions; must divide layers. If omitted, all have them.",
        le=1_024,
        upstream="no_rope_freq",
        later=True,
    )
    normalization: str = setting(
        NORMS[0], doc="Norms; a LayerNorm has biases.", choices=NORMS, upstream="normalization", later=True
    )
    norm_epsilon: float = setting(
        1e-5,
        doc="Epsilon of norms.",
        gt=0,
        le=1,
        upstream="layernorm_epsilon",
        aliases=("rms_norm_eps",),
        later=True,
    )
    layernorm_1p: bool = setting(
        False,
        doc="Norms of either kind add 1 to their weights.",
        upstream="layernorm_zero_centered_gamma",
        aliases=("apply_layernorm_1p",),
        later=True,
    )
    activation: str = setting(
        "swiglu",
        doc="Activation of feed-forward blocks and experts; those with glu have gates.",
        choices=ACTIVATIONS.keys(),
        later=True,
    )
    biases: bool = setting(
        False, doc="Linear layers have biases, except for the output layer.", upstream="add_bias_linear", later=True
    )
    qkv_bias: bool = setting(
        False,
        doc="The projection to queries, keys and values has a bias, as with `biases`.",
        upstream="add_qkv_bias",
        later=True,
    )
    rope_fusion: bool = setting(
        False,
        doc="Rotary positions by Transformer Engine's fused kernels; a cell on the CPU is rejected.",
        upstream="apply_rope_fusion",
        later=True,
    )
    softmax: str = setting(
        VANILLA,
        doc="Softmax variant: `off-by-one` and `learnable` add an attention sink per head, fixed at 0 or learned.",
        choices=SOFTMAXES,
        upstream="softmax_type",
        later=True,
    )
    window: int | None = count(
        None,
        "Tokens before its own that a token attends to (`window_size` without later ones); if omitted, all.",
        le=2**20,
        ge=0,
        upstream="window_size",
        later=True,
    )
    window_skip: int | None = count(
        None,
        "Every N-th layer uses full attention instead of the sliding window.",
        le=1_024,
        upstream="window_attn_skip_freq",
        later=True,
    )
    softmax_scale: float | None = setting(
        None,
        doc="Factor of attention scores; if omitted, one over the root of the head size.",
        gt=0,
        le=1e6,
        upstream="softmax_scale",
        later=True,
    )
    qk_layernorm: bool = setting(
        False,
        doc="Queries and keys of each head are normalised; latent attention always does.",
        upstream="qk_layernorm",
        later=True,
    )
    gathered_logits: bool = setting(
        False,
        doc="The output layer gathers the logits of all tp ranks (`parallel_output=False` of GPTModel).",
        later=True,
    )
    pattern: str = setting(
        "",
        doc="Layers of upstream's HybridModel, [a letter each](models.md#hybrid-models); if omitted, GPTModel.",
        check=checked_pattern,
        aliases=("hybrid_layer_pattern", "hybrid_override_pattern"),
        values='letters, e.g. `"*-*-"`',
        later=True,
    )
    builder: str = setting(
        "", doc="Model of a [plug-in](api.md#plug-ins).", choices=BUILDERS, values="a name", later=True
    )
    moe: MoeConfig | None = setting(None, doc="Experts; if omitted, dense feed-forward blocks.", later=True)
    mtp: MtpConfig | None = setting(None, doc="Multi-token prediction; if omitted, none.", later=True)
    mla: MlaConfig | None = setting(None, doc="Multi-latent attention; if omitted, heads and kv_heads.", later=True)
    peft: PeftConfig | None = setting(
        None, doc="[Adapters](models.md#adapters) of Megatron-Bridge; if omitted, all weights train.", later=True
    )
    vision: VisionConfig | None = setting(
        None, doc="[Images](models.md#vision): Megatron-Bridge's Qwen3-VL; if omitted, text alone.", later=True
    )

    @property
    def head(self) -> int:
        """Elements of an attention head."""
        return self.head_size or self.hidden // self.heads

    @property
    def gated(self) -> bool:
        """Whether feed-forward blocks have gates."""
        return ACTIVATIONS[self.activation].gated

    @property
    def without_rope(self) -> list[int] | None:
        """For each layer 1 if it has no rotary positions, else 0, as upstream expands `no_rope_freq`."""
        every = self.no_rope_freq
        return None if every is None else [int(number % every == 0) for number in range(1, self.layers + 1)]

    @property
    def hybrid(self) -> bool:
        """Whether upstream's HybridModel is built."""
        return bool(self.pattern)

    @property
    def spread(self) -> Layers:
        """Layers of each model chunk, where the pattern cuts them; else their number, to be split evenly."""
        return tuple(map(len, self.pattern.split(CUT))) if CUT in self.pattern else self.layers

    def numbers_of(self, letters: str) -> list[int]:
        """Numbers, from 1, of the layers that have one of these letters; without a pattern every layer has all, but for
        dense layers, which have no experts.
        """
        if letters == EXPERTS and self.moe and not self.pattern:
            return [number for number, has in enumerate(self.moe.at_layers(self.layers), 1) if has]
        found = layers_of(self.pattern) or letters[0] * self.layers
        return [number for number, letter in enumerate(found, 1) if letter in letters]

    @property
    def balanced(self) -> bool:
        """Whether an auxiliary loss acts on routers."""
        return self.moe is not None and self.moe.balanced

    @property
    def router_losses(self) -> bool:
        """Whether an auxiliary loss or a z-loss acts on routers."""
        return self.moe is not None and (self.moe.balanced or self.moe.z_loss_coeff > 0)

    @property
    def by_rows(self) -> bool:
        """Whether gradients depend on which documents share a micro-batch, whatever the loss."""
        return self.mtp is not None or (self.moe is not None and self.moe.by_rows)

    @property
    def drops(self) -> bool:
        """Whether tokens may be dropped, by which documents act on each other."""
        return self.moe is not None and self.moe.drops

    @property
    def padding_mask(self) -> bool:
        """Whether routers get a mask of padding slots."""
        return self.moe is not None and self.moe.padding_mask
