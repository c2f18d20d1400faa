"""Rules of models with experts, multi-token prediction or latent attention."""

from __future__ import annotations

from harness.plan.rules.rule import Rule, Shape, not_divisible


def cuda_graphs_of_packed_rows(config: Shape) -> str | None:
    if not config.model.cuda_graphs or not config.style.packed:
        return None
    return (
        f"model.cuda_graphs is true and packing {config.data_path} packs rows: a graph replays the addresses and sizes "
        "of its capture and takes only tensors, but cu_seqlens and max_seqlen differ in every micro-batch"
    )


def cuda_graphs_under_the_probe(config: Shape) -> str | None:
    if not config.model.cuda_graphs or config.style.packed:
        return None
    return (
        "model.cuda_graphs is true: the probe reads inputs and outputs of every layer on the host, which is not "
        "allowed while a graph is captured"
    )


def rope_fusion_of_plain_rope(config: Shape) -> str | None:
    mla = config.model.mla
    if not config.model.rope_fusion or mla is None or mla.rope == "yarn":
        return None
    return f"model.rope_fusion is true and model.mla.rope is {mla.rope}: fused rotary positions of MLA need rope yarn"


def latent_attention_is_its_own(config: Shape) -> str | None:
    model = config.model
    if model.mla is None:
        return None
    found = [name for name in ("softmax_scale", "qk_layernorm") if getattr(model, name)]
    return f"model.{found[0]} is {getattr(model, found[0])} and model.mla has its own" if found else None


def skip_needs_window(config: Shape) -> str | None:
    if config.model.window_skip is None or config.model.window is not None:
        return None
    return f"model.window_skip is {config.model.window_skip} without a window"


def ep_needs_experts(config: Shape) -> str | None:
    if config.layout.ep == 1 or config.model.moe:
        return None
    return f"ep {config.layout.ep} distributes experts, and the model is dense: set model.moe, or ep 1"


def etp_needs_experts(config: Shape) -> str | None:
    if not config.layout.etp or config.model.moe:
        return None
    return f"etp {config.layout.etp} splits experts, and the model is dense: set model.moe, or etp 0"


def ep_by_ranks(config: Shape) -> str | None:
    layout = config.layout
    replicas = layout.dp * layout.cp
    if layout.etp:
        ranks, each = layout.tp * replicas, layout.etp * layout.ep
        what = f"tp {layout.tp} x dp {layout.dp} x cp {layout.cp} ="
        return not_divisible(what, ranks, f"etp {layout.etp} x ep {layout.ep} = {each}", each)
    if layout.ep == 1:
        return None
    return not_divisible(f"dp {layout.dp} x cp {layout.cp} =", replicas, f"ep {layout.ep}", layout.ep)


def experts_by_ep(config: Shape) -> str | None:
    moe, ep = config.model.moe, config.layout.ep
    return not_divisible("model.moe.experts", moe.experts, f"ep {ep}", ep) if moe else None


def expert_ffn_by_tp(config: Shape) -> str | None:
    moe, layout = config.model.moe, config.layout
    name = f"etp {layout.etp}" if layout.etp else f"tp {layout.tp}"
    return not_divisible("model.moe.ffn", moe.ffn, name, layout.expert_tp) if moe else None


def experts_need_sp(config: Shape) -> str | None:
    layout = config.layout
    if not config.model.moe or layout.tp == 1 or layout.sp:
        return None
    return f"tp {layout.tp} without sp: every tp rank would route all tokens; set sp: true"


def allgather_needs_equal_rows(config: Shape) -> str | None:
    moe, style = config.model.moe, config.style
    if not moe or moe.dispatcher != "allgather":
        return None
    if style.row_length is not None and (not style.packed or config.micro_batch_size == 1):
        return None
    return (
        "rows differ in length between micro-batches, so stages exchange shapes (variable_seq_lengths), which "
        "dispatcher allgather refuses; set dispatcher: alltoall, or pad_to_max_length: true with micro_batch_size 1"
    )


def padding_mask_on_later_stages(config: Shape) -> str | None:
    layout = config.layout
    if not config.model.padding_mask or not layout.sp or layout.pp * layout.vpp == 1:
        return None
    return (
        f"only the first stage splits the padding mask of routers over tp {layout.tp}, so on later stages of pp "
        f"{layout.pp} it has {layout.tp} times as many slots as the router has tokens"
    )


def padding_mask_has_path(config: Shape) -> str | None:
    if not config.model.padding_mask or config.path.hands_padding_mask:
        return None
    return f"model.moe.padding_mask: packing {config.data_path} passes no padding mask to routers"


def aux_loss_per_row_split(config: Shape) -> str | None:
    """Upstream divides this rank's share of the tokens by tokens_per_sample, which is global."""
    moe, layout = config.model.moe, config.layout
    if not config.model.balanced or not moe or moe.aux_loss != "seq_aux_loss" or config.micro_batch_size == 1:
        return None
    if not config.style.packed:
        return None
    if config.style.row_length is None:
        return (
            f"rows differ in length, and seq_aux_loss splits {config.micro_batch_size} merged rows of a micro-batch "
            "by one length; set pad_to_max_length: true"
        )
    if layout.tp * layout.cp == 1:
        return None
    return (
        f"seq_aux_loss splits {config.micro_batch_size} merged rows by seq_length {config.train.seq_length}, and "
        f"a rank of tp {layout.tp} x cp {layout.cp} has only 1/{layout.tp * layout.cp} of each row"
    )


def mtp_reads_tokens(config: Shape) -> str | None:
    mtp = config.model.mtp
    if mtp is None or config.path.tokens_on_last_stage or (mtp.stage is not None and config.path.predicts_on_any_stage):
        return None
    return f"multi-token prediction needs tokens on the last stage, and packing {config.data_path} passes none"


def mtp_has_stage(config: Shape) -> str | None:
    mtp, pp = config.model.mtp, config.layout.pp
    if mtp is None or mtp.stage is None:
        return None
    if mtp.stage >= pp:
        return f"model.mtp.stage is {mtp.stage}, and pp {pp} has stages 0 to {pp - 1}"
    if config.train.steps:
        return (
            f"model.mtp.stage is {mtp.stage}, and the model that the harness trains has its prediction layers on the "
            "last stage; with train.steps 0 the cell only fetches batches"
        )
    if config.path.predicts_on_any_stage:
        return None
    return f"model.mtp.stage is {mtp.stage}, and packing {config.data_path} reads for prediction on the last stage only"


def latent_ranks_by_tp(config: Shape) -> str | None:
    mla, tp = config.model.mla, config.layout.tp
    if mla is None:
        return None
    down = mla.kv_lora_rank + mla.qk_pos_emb_head_dim
    reasons = [not_divisible("model.mla.kv_lora_rank + qk_pos_emb_head_dim =", down, f"tp {tp}", tp)]
    if mla.q_lora_rank is not None:
        reasons.insert(0, not_divisible("model.mla.q_lora_rank", mla.q_lora_rank, f"tp {tp}", tp))
    return next((reason for reason in reasons if reason), None)


RULES: tuple[Rule[Shape], ...] = (
    Rule(
        "packing.cuda-graphs",
        "Megatron-LM TransformerLayer._te_cuda_graph_replay (0.19): only tensors, packed_seq_params must be None",
        cuda_graphs_of_packed_rows,
    ),
    Rule("probe.cuda-graphs", "harness: hooks of the probe read values on the host", cuda_graphs_under_the_probe),
    Rule(
        "mla.rope-fusion",
        "Megatron-LM MLATransformerConfig: apply_rope_fusion for MLA only works with YARN RoPE",
        rope_fusion_of_plain_rope,
        part="mla",
    ),
    Rule(
        "mla.own-attention",
        "Megatron-LM MultiLatentAttention: its own softmax scale, and norms of its compressed queries and keys",
        latent_attention_is_its_own,
        part="mla",
    ),
    Rule("attention.skip-needs-window", "Megatron-LM is_layer_window_attention", skip_needs_window),
    Rule(
        "layout.ep-needs-experts",
        "Megatron-LM TransformerConfig: expert parallel without num_moe_experts",
        ep_needs_experts,
    ),
    Rule("layout.etp-needs-experts", "harness: expert tensor parallel without experts", etp_needs_experts),
    Rule(
        "layout.ep-by-ranks",
        "Megatron-LM parallel_state: EP divides DP x CP; with an expert tensor parallel size, ETP x EP x PP the world",
        ep_by_ranks,
    ),
    Rule("moe.experts-by-ep", "Megatron-LM BaseMoELayer: num_moe_experts % EP == 0", experts_by_ep, part="moe"),
    Rule(
        "moe.ffn-by-tp", "Megatron-LM ColumnParallelLinear: moe_ffn_hidden_size % TP == 0", expert_ffn_by_tp, part="moe"
    ),
    Rule(
        "moe.sp-with-tp",
        "Megatron-LM MoELayer.forward: TP needs sequence parallel while training",
        experts_need_sp,
        part="moe",
    ),
    Rule(
        "moe.allgather-equal-rows",
        "Megatron-LM TransformerConfig: dispatcher allgather refuses variable_seq_lengths",
        allgather_needs_equal_rows,
        part="moe",
    ),
    Rule(
        "moe.padding-mask-stages",
        "Megatron-LM GPTModel._preprocess (0.16 to 0.19): the padding mask is split under pre_process",
        padding_mask_on_later_stages,
        part="moe",
    ),
    Rule(
        "moe.padding-mask-path",
        "harness: which data paths pass a padding mask to routers",
        padding_mask_has_path,
        part="moe",
    ),
    Rule(
        "moe.aux-loss-rows",
        "Megatron-LM TransformerLayer._maybe_unflatten_for_moe: hidden_states.shape[0] // tokens_per_sample",
        aux_loss_per_row_split,
        part="moe",
    ),
    Rule("mtp.tokens", "harness: which data paths pass tokens to the last stage", mtp_reads_tokens, part="mtp"),
    Rule(
        "mtp.stage",
        "harness: prediction layers of the probe's model; Megatron-LM mtp_on_this_rank with a pipeline layout",
        mtp_has_stage,
        part="mtp",
    ),
    Rule(
        "mla.ranks-by-tp",
        "Megatron-LM MLASelfAttention: down projections are column parallel",
        latent_ranks_by_tp,
        part="mla",
    ),
)
