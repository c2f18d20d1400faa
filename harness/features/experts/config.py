"""Experts of a cell's model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.core.setting import count, factor, setting
from harness.features.experts.layers import EVERY, frequency, listed, with_experts

GLOBAL_AUX = "global_aux_loss"
AUX_LOSSES = ("none", "aux_loss", "seq_aux_loss", GLOBAL_AUX)
FLEX = "flex"
DISPATCHERS = ("alltoall", "allgather", FLEX)
SCORES = ("softmax", "sigmoid")
DROP_POLICIES = ("probs", "position")


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Experts in place of feed-forward blocks; without a capacity no token is dropped."""

    experts: int = count(4, "Experts per layer.", le=4_096, upstream="num_moe_experts", aliases=("num_experts",))
    topk: int = count(
        2,
        "Experts per token; 1 with softmax sets moe_router_pre_softmax, as upstream requires.",
        le=4_096,
        upstream="moe_router_topk",
    )
    ffn: int = count(64, "Hidden size of one expert.", le=2**20, upstream="moe_ffn_hidden_size")
    aux_loss: str = setting(
        "none",
        doc="Auxiliary loss that balances the router: over the micro-batch, per row, or over the micro-batches of all "
        "replicas and those before it in the step.",
        choices=AUX_LOSSES,
        upstream="moe_router_load_balancing_type",
    )
    aux_loss_coeff: float = factor(
        0.01, "Weight of the auxiliary loss relative to the loss.", upstream="moe_aux_loss_coeff"
    )
    dispatcher: str = setting(
        "alltoall",
        doc="How tokens are sent to their experts.",
        choices=DISPATCHERS,
        upstream="moe_token_dispatcher_type",
    )
    padding_mask: bool = setting(
        False,
        doc="Mask padding slots, so that routers do not count them (only on the harness's own data paths).",
    )
    z_loss_coeff: float = factor(
        0.0, "Weight of the routers' z-loss relative to the loss; 0: none.", upstream="moe_z_loss_coeff"
    )
    score_function: str = setting(
        SCORES[0],
        doc="How routers turn logits into scores.",
        choices=SCORES,
        upstream="moe_router_score_function",
    )
    expert_bias: bool = setting(
        False,
        doc="A bias of each expert, which changes after every step so that experts get as many tokens; needs sigmoid.",
        upstream="moe_router_enable_expert_bias",
    )
    bias_rate: float = factor(1e-3, "How much such a bias changes in a step.", upstream="moe_router_bias_update_rate")
    shared_ffn: int | None = count(
        None,
        "FFN hidden size of the shared expert; if omitted, there is none.",
        le=2**20,
        upstream="moe_shared_expert_intermediate_size",
    )
    shared_gate: bool = setting(
        False,
        doc="A gate scales the output of that expert, as in Qwen3-Next.",
        upstream="moe_shared_expert_gate",
    )
    capacity_factor: float | None = setting(
        None,
        doc="Expert capacity factor; tokens over capacity are dropped. If omitted, no limit.",
        ge=0.01,
        le=1e6,
        upstream="moe_expert_capacity_factor",
    )
    drop_policy: str = setting(
        DROP_POLICIES[0],
        doc="Which tokens are beyond the capacity: those with the lowest scores, or the last ones.",
        choices=DROP_POLICIES,
        upstream="moe_token_drop_policy",
    )
    pad_to_capacity: bool = setting(
        False,
        doc="Experts get exactly as many tokens as their capacity.",
        upstream="moe_pad_expert_input_to_capacity",
    )
    grouped: bool = setting(
        False,
        doc="Experts run as one grouped product, not one after the other; on a CPU a stand-in multiplies.",
        upstream="moe_grouped_gemm",
        later=True,
    )
    layer_freq: str = setting(
        EVERY,
        doc="Layers with experts: every N-th from the first, or a list with 1 for each layer that has them and 0 for a "
        "dense one, such as `[0]*1+[1]*3` for a first layer without.",
        read=frequency,
        values="a number, or a list",
        written={"anyOf": [{"type": "integer", "minimum": 1, "maximum": 1_024}, {"type": "string"}, {"type": "array"}]},
        upstream="moe_layer_freq",
        later=True,
    )

    def at_layers(self, layers: int) -> list[bool]:
        """Return of each layer of a model whether it has experts."""
        return with_experts(self.layer_freq, layers)

    def of_first_layers(self, layers: int) -> MoeConfig | None:
        """Return the experts of the first layers of a model; None if these are dense."""
        kinds = listed(self.layer_freq)
        if kinds is None:
            return self
        return replace(self, layer_freq=frequency(kinds[:layers])) if any(kinds[:layers]) else None

    @property
    def balanced(self) -> bool:
        """Whether an auxiliary loss acts on the router."""
        return self.aux_loss != "none" and self.aux_loss_coeff > 0

    @property
    def pre_softmax(self) -> bool:
        """Whether routers apply softmax before they choose, as upstream requires for topk 1.

        Softmax over the one chosen expert would be 1, without a gradient.
        """
        return self.topk == 1 and self.score_function == SCORES[0]

    @property
    def by_rows(self) -> bool:
        """Whether gradients depend on which tokens, padding included, share a micro-batch."""
        return self.balanced or self.z_loss_coeff > 0 or self.expert_bias or self.capacity_factor is not None

    @property
    def drops(self) -> bool:
        """Whether an expert may get more tokens than it takes: a rank's tokens, if all of them choose it."""
        return self.capacity_factor is not None and self.capacity_factor * self.topk < self.experts

    def __str__(self) -> str:
        """As part of a cell's name: moe4x2, moe4x2-seq_aux_loss, moe4x2-allgather."""
        name = f"moe{self.experts}x{self.topk}"
        name += f"-{self.aux_loss}" if self.balanced else ""
        name += "-masked" if self.padding_mask else ""
        name += "".join(f"-{part}" for part in self._later())
        return name if self.dispatcher == "alltoall" else f"{name}-{self.dispatcher}"

    def _later(self) -> list[str]:
        """Return parts of the name that are no defaults: z0.1, sigmoid, bias, shared32, cap1.5-position-padded."""
        parts = [f"z{self.z_loss_coeff:g}"] if self.z_loss_coeff else []
        parts += [self.score_function] if self.score_function != SCORES[0] else []
        parts += ["bias"] if self.expert_bias else []
        parts += [f"shared{self.shared_ffn}"] if self.shared_ffn else []
        parts += ["gate"] if self.shared_gate else []
        parts += [f"cap{self.capacity_factor:g}"] if self.capacity_factor is not None else []
        parts += [self.drop_policy] if self.drop_policy != DROP_POLICIES[0] else []
        parts += ["padded"] if self.pad_to_capacity else []
        parts += ["grouped"] if self.grouped else []
        kinds = listed(self.layer_freq)
        if kinds is not None:
            return [*parts, "layers" + "".join(map(str, kinds))]
        return parts + ([f"freq{self.layer_freq}"] if self.layer_freq != EVERY else [])
