"""Rules of experts and their routers."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.features.experts.config import FLEX
from harness.matrix.rules.rule import Rule, not_divisible


def ep_needs_experts(config: CellConfig) -> str | None:
    if config.layout.ep == 1 or config.model.moe:
        return None
    return f"ep {config.layout.ep} distributes experts, and the model is dense: set model.moe, or ep 1"


def etp_needs_experts(config: CellConfig) -> str | None:
    if not config.layout.etp or config.model.moe:
        return None
    return f"etp {config.layout.etp} splits experts, and the model is dense: set model.moe, or etp 0"


def ep_by_ranks(config: CellConfig) -> str | None:
    layout = config.layout
    replicas = layout.dp * layout.cp
    if layout.etp:
        ranks, each = layout.tp * replicas, layout.etp * layout.ep
        what = f"tp {layout.tp} x dp {layout.dp} x cp {layout.cp} ="
        return not_divisible(what, ranks, f"etp {layout.etp} x ep {layout.ep} = {each}", each)
    if layout.ep == 1:
        return None
    return not_divisible(f"dp {layout.dp} x cp {layout.cp} =", replicas, f"ep {layout.ep}", layout.ep)


def experts_by_ep(config: CellConfig) -> str | None:
    moe, ep = config.model.moe, config.layout.ep
    return not_divisible("model.moe.experts", moe.experts, f"ep {ep}", ep) if moe else None


def expert_ffn_by_tp(config: CellConfig) -> str | None:
    moe, layout = config.model.moe, config.layout
    name = f"etp {layout.etp}" if layout.etp else f"tp {layout.tp}"
    return not_divisible("model.moe.ffn", moe.ffn, name, layout.expert_tp) if moe else None


def experts_need_sp(config: CellConfig) -> str | None:
    layout = config.layout
    if not config.model.moe or layout.tp == 1 or layout.sp:
        return None
    return f"tp {layout.tp} without sp: every tp rank would route all tokens; set sp: true"


def allgather_needs_equal_rows(config: CellConfig) -> str | None:
    moe, style = config.model.moe, config.style
    if not moe or moe.dispatcher != "allgather":
        return None
    # Merged rows of packed documents differ in length even if each row is full, unless there is one.
    if style.row_length is not None and (not style.packed or config.micro_batch_size == 1):
        return None
    return (
        "rows differ in length between micro-batches, so stages exchange shapes (variable_seq_lengths), which "
        "dispatcher allgather refuses; set dispatcher: alltoall, or pad_to_max_length: true with micro_batch_size 1"
    )


def flex_needs_gpus(config: CellConfig) -> str | None:
    moe = config.model.moe
    if not moe or moe.dispatcher != FLEX:
        return None
    return (
        "dispatcher flex sends tokens by kernels of DeepEP, HybridEP or NCCL, which exist for GPUs alone, and no cell "
        "has run with them yet; set dispatcher: alltoall, which sends the same tokens"
    )


def grouped_layers_have_adapters(config: CellConfig) -> str | None:
    moe = config.model.moe
    if not moe or not moe.grouped or not config.model.peft:
        return None
    return (
        "model.peft adapts Transformer Engine's grouped layers, and on a CPU model.moe.grouped has a stand-in for "
        "them; set grouped: false"
    )


def padding_mask_on_later_stages(config: CellConfig) -> str | None:
    layout = config.layout
    if not config.model.padding_mask or not layout.sp or layout.pp * layout.vpp == 1:
        return None
    return (
        f"only the first stage splits the padding mask of routers over tp {layout.tp}, so on later stages of pp "
        f"{layout.pp} it has {layout.tp} times as many slots as the router has tokens"
    )


def padding_mask_has_path(config: CellConfig) -> str | None:
    if not config.model.padding_mask or config.path.hands_padding_mask:
        return None
    return f"model.moe.padding_mask: packing {config.data_path} passes no padding mask to routers"


def aux_loss_per_row_split(config: CellConfig) -> str | None:
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


def shared_ffn_by_tp(config: CellConfig) -> str | None:
    moe, tp = config.model.moe, config.layout.tp
    return not_divisible("model.moe.shared_ffn", moe.shared_ffn, f"tp {tp}", tp) if moe and moe.shared_ffn else None


def bias_needs_sigmoid(config: CellConfig) -> str | None:
    moe = config.model.moe
    if not moe or not moe.expert_bias or moe.score_function == "sigmoid":
        return None
    return f"model.moe.expert_bias is true and score_function is {moe.score_function}; set score_function: sigmoid"


def padding_needs_capacity(config: CellConfig) -> str | None:
    moe = config.model.moe
    if not moe or not moe.pad_to_capacity or moe.capacity_factor is not None:
        return None
    return "model.moe.pad_to_capacity is true without a capacity_factor"


def dropping_by_rank(config: CellConfig) -> str | None:
    """Which tokens are dropped depends on the tokens of the rank, so a control must have the same ones."""
    layout, moe = config.layout, config.model.moe
    if not moe or not moe.drops:
        return None
    # At this factor an expert has room for all tokens of the rank.
    enough = f"capacity_factor {moe.experts / moe.topk:g} or more drops nothing"
    if layout.tp * layout.cp > 1:
        return (
            f"a rank of tp {layout.tp} x cp {layout.cp} drops tokens by its own part of a row, and other tokens than "
            f"one rank that has the whole row; {enough}"
        )
    if config.path.own:
        return None
    return (
        f"rows of packing {config.data_path} are not those of its control, so experts drop other tokens; {enough}, and "
        "packing reference has a control with the same rows"
    )


EXPERT_RULES: tuple[Rule, ...] = (
    Rule(
        "layout.ep-needs-experts",
        "Megatron-LM TransformerConfig: expert parallel without num_moe_experts",
        ep_needs_experts,
    ),
    Rule("layout.etp-needs-experts", "harness: expert tensor parallel without experts", etp_needs_experts),
    Rule(
        "layout.ep-by-ranks",
        "Megatron-LM parallel_state.initialize_model_parallel: EP divides DP x CP; with an expert tensor parallel "
        "size, ETP x EP x PP the world",
        ep_by_ranks,
    ),
    Rule("moe.experts-by-ep", "Megatron-LM BaseMoELayer: num_moe_experts % EP == 0", experts_by_ep),
    Rule("moe.ffn-by-tp", "Megatron-LM ColumnParallelLinear: moe_ffn_hidden_size % TP == 0", expert_ffn_by_tp),
    Rule("moe.sp-with-tp", "Megatron-LM MoELayer.forward: TP needs sequence parallel while training", experts_need_sp),
    Rule(
        "moe.allgather-equal-rows",
        "Megatron-LM TransformerConfig: dispatcher allgather refuses variable_seq_lengths",
        allgather_needs_equal_rows,
    ),
    Rule(
        "moe.flex-dispatcher",
        "Megatron-LM MoEFlexTokenDispatcher: its backends need a GPU; harness: none is tested on one",
        flex_needs_gpus,
    ),
    Rule(
        "moe.grouped-adapters",
        "harness: a stand-in for grouped layers, which Megatron-Bridge does not know",
        grouped_layers_have_adapters,
    ),
    Rule(
        "moe.padding-mask-stages",
        "Megatron-LM GPTModel._preprocess: splits the padding mask under pre_process only, so later stages have it "
        "whole",
        padding_mask_on_later_stages,
    ),
    Rule("moe.padding-mask-path", "harness: which data paths pass a padding mask to routers", padding_mask_has_path),
    Rule(
        "moe.aux-loss-rows",
        "Megatron-LM TransformerLayer._maybe_unflatten_for_moe: splits a rank's tokens by the tokens of a whole row",
        aux_loss_per_row_split,
    ),
    Rule("moe.shared-ffn-by-tp", "Megatron-LM SharedExpertMLP: its layers are split over TP", shared_ffn_by_tp),
    Rule(
        "moe.bias-needs-sigmoid",
        "Megatron-LM TransformerConfig: expert bias for aux-loss-free routing only supports sigmoid scores",
        bias_needs_sigmoid,
    ),
    Rule(
        "moe.padding-needs-capacity",
        "Megatron-LM TransformerConfig: moe_expert_capacity_factor must be set to pad to it",
        padding_needs_capacity,
    ),
    Rule(
        "moe.dropping",
        "harness: a layout and its control must drop the same tokens; Megatron-LM apply_router_token_dropping drops "
        "by the rank's own",
        dropping_by_rank,
    ),
)
