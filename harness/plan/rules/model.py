"""Rules of models: experts, multi-token prediction, latent attention, layer patterns, adapters, vision."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.data_paths.megatron_bridge import IN_BATCH
from harness.core.data_paths.own import UNPACKED
from harness.core.layer_pattern import CUT, GATED_DELTA, MAMBA
from harness.plan.rules.rule import Rule, not_divisible


def cuda_graphs_of_packed_rows(config: CellConfig) -> str | None:
    if not config.model.cuda_graphs or not config.style.packed:
        return None
    return (
        f"model.cuda_graphs is true and packing {config.data_path} packs rows: a graph replays the addresses and sizes "
        "of its capture and takes only tensors, but cu_seqlens and max_seqlen differ in every micro-batch"
    )


def cuda_graphs_under_the_probe(config: CellConfig) -> str | None:
    if not config.model.cuda_graphs or config.style.packed:
        return None
    return (
        "model.cuda_graphs is true: the probe reads inputs and outputs of every layer on the host, which is not "
        "allowed while a graph is captured"
    )


def rope_fusion_of_plain_rope(config: CellConfig) -> str | None:
    mla = config.model.mla
    if not config.model.rope_fusion or mla is None or mla.rope == "yarn":
        return None
    return f"model.rope_fusion is true and model.mla.rope is {mla.rope}: fused rotary positions of MLA need rope yarn"


def latent_attention_is_its_own(config: CellConfig) -> str | None:
    model = config.model
    if model.mla is None:
        return None
    found = [name for name in ("softmax_scale", "qk_layernorm") if getattr(model, name)]
    return f"model.{found[0]} is {getattr(model, found[0])} and model.mla has its own" if found else None


def skip_needs_window(config: CellConfig) -> str | None:
    if config.model.window_skip is None or config.model.window is not None:
        return None
    return f"model.window_skip is {config.model.window_skip} without a window"


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
    if style.row_length is not None and (not style.packed or config.micro_batch_size == 1):
        return None
    return (
        "rows differ in length between micro-batches, so stages exchange shapes (variable_seq_lengths), which "
        "dispatcher allgather refuses; set dispatcher: alltoall, or pad_to_max_length: true with micro_batch_size 1"
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


def mtp_reads_tokens(config: CellConfig) -> str | None:
    mtp = config.model.mtp
    if mtp is None or config.path.tokens_on_last_stage or (mtp.stage is not None and config.path.predicts_on_any_stage):
        return None
    return f"multi-token prediction needs tokens on the last stage, and packing {config.data_path} passes none"


def mtp_has_stage(config: CellConfig) -> str | None:
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


def latent_ranks_by_tp(config: CellConfig) -> str | None:
    mla, tp = config.model.mla, config.layout.tp
    if mla is None:
        return None
    down = mla.kv_lora_rank + mla.qk_pos_emb_head_dim
    reasons = [not_divisible("model.mla.kv_lora_rank + qk_pos_emb_head_dim =", down, f"tp {tp}", tp)]
    if mla.q_lora_rank is not None:
        reasons.insert(0, not_divisible("model.mla.q_lora_rank", mla.q_lora_rank, f"tp {tp}", tp))
    return next((reason for reason in reasons if reason), None)


MODEL_RULES: tuple[Rule, ...] = (
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
    ),
    Rule(
        "mla.own-attention",
        "Megatron-LM MultiLatentAttention: its own softmax scale, and norms of its compressed queries and keys",
        latent_attention_is_its_own,
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
    Rule("moe.experts-by-ep", "Megatron-LM BaseMoELayer: num_moe_experts % EP == 0", experts_by_ep),
    Rule("moe.ffn-by-tp", "Megatron-LM ColumnParallelLinear: moe_ffn_hidden_size % TP == 0", expert_ffn_by_tp),
    Rule("moe.sp-with-tp", "Megatron-LM MoELayer.forward: TP needs sequence parallel while training", experts_need_sp),
    Rule(
        "moe.allgather-equal-rows",
        "Megatron-LM TransformerConfig: dispatcher allgather refuses variable_seq_lengths",
        allgather_needs_equal_rows,
    ),
    Rule(
        "moe.padding-mask-stages",
        "Megatron-LM GPTModel._preprocess (0.16 to 0.19): the padding mask is split under pre_process",
        padding_mask_on_later_stages,
    ),
    Rule("moe.padding-mask-path", "harness: which data paths pass a padding mask to routers", padding_mask_has_path),
    Rule(
        "moe.aux-loss-rows",
        "Megatron-LM TransformerLayer._maybe_unflatten_for_moe: hidden_states.shape[0] // tokens_per_sample",
        aux_loss_per_row_split,
    ),
    Rule("mtp.tokens", "harness: which data paths pass tokens to the last stage", mtp_reads_tokens),
    Rule(
        "mtp.stage",
        "harness: prediction layers of the probe's model; Megatron-LM mtp_on_this_rank with a pipeline layout",
        mtp_has_stage,
    ),
    Rule("mla.ranks-by-tp", "Megatron-LM MLASelfAttention: down projections are column parallel", latent_ranks_by_tp),
)


def cuts_by_stages(config: CellConfig) -> str | None:
    layout, cuts = config.layout, config.model.pattern.count(CUT)
    stages = layout.pp * layout.vpp
    if not cuts or cuts + 1 == stages or stages == 1:
        return None
    return f"model.pattern has {cuts + 1} stages, and the layout has pp {layout.pp} x vpp {layout.vpp} = {stages}"


def interleaving_needs_cuts(config: CellConfig) -> str | None:
    layout = config.layout
    if not config.model.hybrid or layout.vpp == 1 or CUT in config.model.pattern:
        return None
    return (
        f"vpp {layout.vpp} without cuts: model.pattern needs {CUT} between its pp {layout.pp} x vpp {layout.vpp} chunks"
    )


def heads_by_ranks(config: CellConfig) -> str | None:
    """Recurrent layers exchange slots for heads over cp, so that a rank has all slots of some heads."""
    model, layout = config.model, config.layout
    ranks = layout.tp * layout.cp
    if not {GATED_DELTA, MAMBA} & {*model.pattern}:
        return None
    if uneven := not_divisible("model.heads", model.heads, f"tp {layout.tp} x cp {layout.cp} = {ranks}", ranks):
        return uneven
    if GATED_DELTA not in model.pattern:
        return None
    return not_divisible("model.kv_heads", model.kv_heads, f"tp {layout.tp} x cp {layout.cp} = {ranks}", ranks)


def groups_by_context(config: CellConfig) -> str | None:
    """Mamba's groups of heads (kv_heads of them) are copied over cp if there are fewer than ranks."""
    model, layout = config.model, config.layout
    if MAMBA not in model.pattern or model.kv_heads % layout.tp:
        return None
    groups = model.kv_heads // layout.tp
    if groups % layout.cp == 0 or layout.cp % groups == 0:
        return None
    found = f"model.kv_heads {model.kv_heads} / tp {layout.tp} = {groups} groups"
    return f"{found}, neither a multiple nor a divisor of cp {layout.cp}"


def pattern_without_other_parts(config: CellConfig) -> str | None:
    """HybridModel has letters for latent attention, and a further pattern for prediction layers."""
    model = config.model
    if not model.pattern or not (model.mtp or model.mla):
        return None
    return f"model.pattern with model.{'mtp' if model.mtp else 'mla'}: the probe does not build it in hybrid models"


_PATTERN = "Megatron-LM 0.19 models/hybrid/hybrid_layer_allocation.py select_pipeline_segment"
HYBRID_RULES: tuple[Rule, ...] = (
    Rule("hybrid.cuts-by-stages", f"{_PATTERN}: number of segments", cuts_by_stages),
    Rule("hybrid.interleaving-needs-cuts", f"{_PATTERN}: no virtual stages without them", interleaving_needs_cuts),
    Rule(
        "hybrid.heads-by-ranks",
        "Megatron-LM TransformerConfig (gated_delta_net) and MambaContextParallel: heads % (TP * CP) == 0",
        heads_by_ranks,
    ),
    Rule(
        "hybrid.groups-by-context", "Megatron-LM MambaContextParallel.__init__: ngroups and cp_size", groups_by_context
    ),
    Rule("hybrid.parts", "harness: the probe's hybrid models have neither", pattern_without_other_parts),
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
        "Megatron-LM apply_router_token_dropping: the capacity is of num_tokens, those of the rank",
        dropping_by_rank,
    ),
)


def rank_by_tp(config: CellConfig) -> str | None:
    """An adapter of a column parallel layer splits its rank over tp."""
    peft, layout = config.model.peft, config.layout
    if peft is None:
        return None
    tp = max(layout.tp, layout.expert_tp if config.model.moe else 1)
    return not_divisible("model.peft.rank", peft.rank, f"tp {tp}", tp)


def adapters_without_other_parts(config: CellConfig) -> str | None:
    model = config.model
    if model.peft is None or not (model.pattern or model.mtp):
        return None
    return f"model.peft with model.{'pattern' if model.pattern else 'mtp'}: the harness does not adapt such layers"


def adapted_layers_exist(config: CellConfig) -> str | None:
    """Latent attention projects queries, keys and values by other layers, which the harness does not adapt."""
    model = config.model
    if model.peft is None or model.mla is None:
        return None
    return "model.peft with model.mla: latent attention has no linear_qkv"


ADAPTER_RULES: tuple[Rule, ...] = (
    Rule("peft.rank-by-tp", "Megatron-LM ColumnParallelLinear: its output size % TP == 0", rank_by_tp),
    Rule("peft.parts", "harness: adapters on decoder layers of GPTModel", adapters_without_other_parts),
    Rule("peft.latent-attention", "Megatron-LM MLASelfAttention", adapted_layers_exist),
)


def images_have_a_path(config: CellConfig) -> str | None:
    if not config.model.vision or config.data_path in (IN_BATCH.name, UNPACKED.name):
        return None
    return (
        f"model.vision with packing {config.data_path}, which passes no images and no positions along three axes; only "
        f"{IN_BATCH.name} does, and {UNPACKED.name}"
    )


def images_need_a_tower(config: CellConfig) -> str | None:
    if config.model.vision or not config.documents.images:
        return None
    return "documents have images, and the model has no vision: set model.vision, or other documents"


def chats_have_an_answer(config: CellConfig) -> str | None:
    if not config.model.vision or config.data_path != IN_BATCH.name or not config.documents.masked:
        return None
    return (
        f"documents {config.documents.mode} have one that is all prompt, which upstream's collator of images refuses; "
        "use documents: images or plain"
    )


def vision_without_other_parts(config: CellConfig) -> str | None:
    model = config.model
    found = next((name for name in ("moe", "mtp", "mla", "pattern") if getattr(model, name)), None)
    return f"model.vision with model.{found}: the probe builds a dense Qwen3-VL" if model.vision and found else None


def one_chunk_per_stage(config: CellConfig) -> str | None:
    layout = config.layout
    if not config.model.vision or layout.vpp == 1:
        return None
    return (
        f"vpp {layout.vpp}: Qwen3VLModel sets its own vp_stage to None, so every chunk would be the first of its stage"
    )


def deepstack_on_first_stage(config: CellConfig) -> str | None:
    vision, layout = config.model.vision, config.layout
    if vision is None:
        return None
    held = config.model.layers // layout.pp
    if vision.deepstack <= held:
        return None
    return (
        f"model.vision.deepstack {vision.deepstack}: the first stage has {held} of {config.model.layers} layers at pp "
        f"{layout.pp}, and only it gets the features of the tower"
    )


def tower_by_tp(config: CellConfig) -> str | None:
    vision, tp = config.model.vision, config.layout.tp
    if vision is None:
        return None
    sizes = (("heads", vision.heads), ("ffn", vision.ffn))
    reasons = (not_divisible(f"model.vision.{name}", size, f"tp {tp}", tp) for name, size in sizes)
    return next((reason for reason in reasons if reason), None)


_VISION_MODEL = "Megatron-Bridge Qwen3VLModel"
VISION_RULES: tuple[Rule, ...] = (
    Rule(
        "vision.images-have-a-path",
        "Megatron-Bridge training.vlm_step: the step with visual_inputs",
        images_have_a_path,
    ),
    Rule("vision.images-need-a-tower", "harness: image tokens without a vision tower", images_need_a_tower),
    Rule(
        "vision.chats-have-an-answer",
        "Megatron-Bridge build_assistant_loss_mask (0.6): ValueError without loss-contributing spans",
        chats_have_an_answer,
    ),
    Rule("vision.no-other-parts", "harness: the probe builds dense models with vision", vision_without_other_parts),
    Rule("vision.one-chunk-per-stage", f"{_VISION_MODEL}.__init__: self.vp_stage = None", one_chunk_per_stage),
    Rule(
        "vision.deepstack-on-first-stage",
        f"{_VISION_MODEL}.__init__: deepstack_visual_embeds on the first pp-stage",
        deepstack_on_first_stage,
    ),
    Rule("vision.tower-by-tp", "Megatron-LM ColumnParallelLinear: output size % TP == 0", tower_by_tp),
)
