"""Rules of experts, multi-token prediction and latent attention: each rejects a cell and allows the nearest one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import LEARNED, ModelConfig
from harness.core.packing.documents import DocumentsConfig, mix
from harness.core.packing.options import PackingOptions
from harness.features.adapters.config import PeftConfig
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.features.vision.config import VisionConfig
from harness.matrix.rules.table import rejections
from harness.matrix.schema.sections import model_problems

EXPERTS = ModelConfig(moe=MoeConfig())
MASKED = ModelConfig(moe=MoeConfig(aux_loss="aux_loss", padding_mask=True))
GATHERED = ModelConfig(moe=MoeConfig(dispatcher="allgather"))
PER_ROW = ModelConfig(moe=MoeConfig(aux_loss="seq_aux_loss"))
PREDICTING = ModelConfig(mtp=MtpConfig())
ON_FIRST, FETCHES = ModelConfig(mtp=MtpConfig(stage=0)), TrainConfig(steps=0)
LATENT = ModelConfig(mla=MlaConfig(q_lora_rank=6))
FULL = PackingOptions(pad_to_max_length=True)


def cell(data_path: str = "reference", **more: Any) -> CellConfig:
    fields = {name: more.pop(name) for name in ("model", "micro_batch_size", "options", "train") if name in more}
    more.setdefault("sp", more.get("tp", 1) > 1)
    documents = DocumentsConfig(mode="file", lengths=(16,))
    return CellConfig(layout=Layout(**more), data_path=data_path, documents=documents, **fields)


def reason(rule: str, config: CellConfig) -> str | None:
    return next((item.reason for item in rejections(config) if item.rule == rule), None)


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        (
            "positions.prediction",
            cell(model=ModelConfig(mtp=MtpConfig(), position_embedding=LEARNED)),
            "model.position_embedding is learned_absolute with model.mtp",
            cell(model=ModelConfig(mtp=MtpConfig(), position_embedding="none")),
        ),
        (
            "positions.prediction",
            cell(model=ModelConfig(mtp=MtpConfig(), no_rope_freq=2)),
            "model.no_rope_freq is 2 with model.mtp",
            cell(model=ModelConfig(no_rope_freq=2)),
        ),
        (
            "positions.ids",
            cell("nemo_rl", model=ModelConfig(position_embedding=LEARNED)),
            "packing nemo_rl gives the model no position ids",
            cell("sft", model=ModelConfig(position_embedding=LEARNED)),
        ),
        (
            "hybrid.delta-net-activation",
            cell(model=ModelConfig(pattern="G-*-", activation="gelu")),
            "model.activation is gelu, and model.pattern has a Gated Delta Net",
            cell(model=ModelConfig(pattern="M-*-", activation="gelu")),
        ),
        (
            "positions.factor",
            cell(model=ModelConfig(rope_scaling_factor=4)),
            "model.rope_scaling_factor is 4 without rope_scaling",
            cell(model=ModelConfig(rope_scaling_factor=4, rope_scaling=True)),
        ),
        (
            "positions.hybrid",
            cell(model=ModelConfig(pattern="*-*-", rope_scaling=True)),
            "model.rope_scaling is true with model.pattern",
            cell(model=ModelConfig(pattern="*-*-", rotary_percent=0.5)),
        ),
        (
            "model.biases-of-experts",
            cell(model=replace(EXPERTS, biases=True)),
            "model.biases is true with model.moe",
            cell(model=replace(EXPERTS, qkv_bias=True)),
        ),
        (
            "mla.own-attention",
            cell(model=replace(LATENT, rotary_percent=0.5)),
            "model.rotary_percent is 0.5 and model.mla has its own",
            cell(model=replace(LATENT, norm_epsilon=0.1)),
        ),
        (
            "vision.no-other-parts",
            cell("unpacked", model=ModelConfig(vision=VisionConfig(), biases=True)),
            "model.vision with model.biases",
            cell("unpacked", model=ModelConfig(vision=VisionConfig(), norm_epsilon=0.1)),
        ),
        ("layout.ep-needs-experts", cell(ep=2, dp=2), "the model is dense", cell(ep=2, dp=2, model=EXPERTS)),
        (
            "layout.ep-by-ranks",
            cell(ep=2, dp=3, model=EXPERTS),
            "dp 3 x cp 1 = 3 is not divisible by ep 2",
            cell(ep=2, cp=2, model=EXPERTS),
        ),
        (
            "moe.experts-by-ep",
            cell(ep=3, dp=3, model=EXPERTS),
            "model.moe.experts 4 is not divisible by ep 3",
            cell(ep=4, dp=4, model=EXPERTS),
        ),
        (
            "moe.ffn-by-tp",
            cell(tp=2, model=ModelConfig(moe=MoeConfig(ffn=63))),
            "model.moe.ffn 63 is not divisible by tp 2",
            cell(tp=2, model=EXPERTS),
        ),
        ("moe.sp-with-tp", cell(tp=2, sp=False, model=EXPERTS), "tp 2 without sp", cell(tp=2, model=EXPERTS)),
        (
            "moe.allgather-equal-rows",
            cell(model=GATHERED),
            "set dispatcher: alltoall",
            cell(model=GATHERED, options=FULL),
        ),
        (
            "moe.allgather-equal-rows",
            cell(model=GATHERED, options=FULL, micro_batch_size=2),
            "with micro_batch_size 1",
            cell("unpacked", model=GATHERED, micro_batch_size=2),
        ),
        (
            "moe.padding-mask-stages",
            cell(tp=2, pp=2, model=MASKED),
            "on later stages of pp 2 it has 2 times as many slots",
            cell(pp=2, model=MASKED),
        ),
        (
            "moe.padding-mask-path",
            cell("sft", model=MASKED),
            "sft passes no padding mask",
            cell("unpacked", model=MASKED),
        ),
        (
            "moe.aux-loss-rows",
            cell(model=PER_ROW, micro_batch_size=2),
            "set pad_to_max_length: true",
            cell(model=PER_ROW, micro_batch_size=2, options=FULL),
        ),
        (
            "moe.aux-loss-rows",
            cell(cp=2, model=PER_ROW, micro_batch_size=2, options=FULL),
            "a rank of tp 1 x cp 2 has only 1/2 of each row",
            cell(cp=2, model=PER_ROW, options=FULL),
        ),
        ("mtp.tokens", cell("skyrl", model=PREDICTING), "packing skyrl passes none", cell("sft", model=PREDICTING)),
        ("mtp.tokens", cell("scheduler", model=PREDICTING), "packing scheduler passes none", cell("scheduler")),
        (
            "mtp.stage",
            cell(pp=2, model=ON_FIRST),
            "to train with prediction layers there, write m into stages",
            cell(pp=2, train=FETCHES, model=ON_FIRST),
        ),
        (
            "mtp.stage",
            cell(pp=3, train=FETCHES, model=ON_FIRST, stages="Ett|ttm|L"),
            "model.mtp.stage is 0, and stages has m on stage 1",
            cell(pp=2, train=FETCHES, model=ON_FIRST),
        ),
        (
            "mtp.tokens",
            cell("sft", pp=2, train=FETCHES, model=ON_FIRST),
            "needs tokens on stage 0, and packing sft passes none",
            cell("scheduler", pp=2, train=FETCHES, model=ON_FIRST),
        ),
        (
            "mtp.tokens",
            cell("bridge_offline", pp=3, model=PREDICTING, stages="Ett|ttm|L"),
            "needs tokens on stage 1, and packing bridge_offline passes none",
            cell("sft", pp=3, model=PREDICTING, stages="Ett|ttm|L"),
        ),
        (
            "mtp.stage",
            cell(pp=2, train=FETCHES, model=ModelConfig(mtp=MtpConfig(stage=2))),
            "model.mtp.stage is 2, and pp 2 has stages 0 to 1",
            cell(pp=2, train=FETCHES, model=ModelConfig(mtp=MtpConfig(stage=1))),
        ),
        (
            "mla.ranks-by-tp",
            cell(tp=4, model=LATENT),
            "model.mla.q_lora_rank 6 is not divisible by tp 4",
            cell(tp=2, model=LATENT),
        ),
        (
            "mla.ranks-by-tp",
            cell(tp=2, model=ModelConfig(mla=MlaConfig(kv_lora_rank=15))),
            "model.mla.kv_lora_rank + qk_pos_emb_head_dim = 19 is not divisible by tp 2",
            cell(tp=2, model=ModelConfig(mla=MlaConfig(q_lora_rank=None))),
        ),
    ],
)
def test_a_rule_rejects_with_its_arithmetic_and_allows_the_nearest_cell(
    rule: str, wrong: CellConfig, expected: str, right: CellConfig
) -> None:
    found = reason(rule, wrong)
    assert found is not None
    assert expected in found
    assert reason(rule, right) is None


def test_fused_rotary_positions_of_latent_attention_need_yarn() -> None:
    for rope, rules in (("rope", ["mla.rope-fusion"]), ("yarn", [])):
        model = ModelConfig(rope_fusion=True, mla=MlaConfig(rope=rope))
        cell = CellConfig(layout=Layout(), data_path="unpacked", model=model)
        assert [item.rule for item in rejections(cell)] == rules


@pytest.mark.parametrize(
    ("tp", "pp", "vpp", "sp", "mask"), list(itertools.product((1, 2), (1, 2), (1, 2), *[(False, True)] * 2))
)
def test_a_padding_mask_is_refused_exactly_where_a_later_stage_needs_the_mask_that_the_first_split(
    tp: int, pp: int, vpp: int, sp: bool, mask: bool
) -> None:
    model = ModelConfig(moe=MoeConfig(aux_loss="aux_loss", padding_mask=mask))
    found = reason("moe.padding-mask-stages", cell(tp=tp, pp=pp, vpp=vpp, sp=sp, model=model))
    assert (found is not None) == (mask and sp and (pp > 1 or vpp > 1))


@pytest.mark.parametrize(("tp", "cp"), list(itertools.product((1, 2, 4), (1, 2))))
@pytest.mark.parametrize("micro_batch_size", [1, 2])
@pytest.mark.parametrize("aux_loss", ["none", "aux_loss", "seq_aux_loss"])
def test_merged_rows_are_split_by_their_length_only_where_a_rank_has_whole_rows(
    tp: int, cp: int, micro_batch_size: int, aux_loss: str
) -> None:
    model = ModelConfig(moe=MoeConfig(aux_loss=aux_loss))
    split = cell(tp=tp, cp=cp, model=model, micro_batch_size=micro_batch_size, options=FULL)
    merged = aux_loss == "seq_aux_loss" and micro_batch_size > 1
    found = reason("moe.aux-loss-rows", split)
    assert (found is not None) == (merged and tp * cp > 1)
    assert not found or f"has only 1/{tp * cp} of each row" in found
    assert reason("moe.aux-loss-rows", replace(split, data_path="unpacked")) is None


def test_rows_are_split_for_the_auxiliary_loss_only_if_it_has_weight() -> None:
    for coefficient, refused in ((0.01, True), (0.0, False)):
        model = ModelConfig(moe=MoeConfig(aux_loss="seq_aux_loss", aux_loss_coeff=coefficient))
        assert (reason("moe.aux-loss-rows", cell(model=model, micro_batch_size=2)) is not None) == refused


def test_experts_on_one_tp_rank_need_no_sequence_parallelism() -> None:
    assert reason("moe.sp-with-tp", cell(tp=1, sp=False, model=EXPERTS)) is None
    assert reason("moe.sp-with-tp", cell(tp=2, sp=False)) is None


def test_if_both_low_ranks_do_not_divide_the_reason_names_q_lora_rank() -> None:
    model = ModelConfig(mla=MlaConfig(q_lora_rank=6, kv_lora_rank=15))
    assert (reason("mla.ranks-by-tp", cell(tp=4, model=model)) or "").startswith("model.mla.q_lora_rank 6 ")


WITHOUT = "model.pattern with model.mtp: the probe does not build it in hybrid models"


def hybrid(pattern: str, model: dict[str, Any] | None = None, **layout: Any) -> CellConfig:
    layers = len(pattern.replace("|", ""))
    return cell(model=ModelConfig(layers=layers, pattern=pattern, **(model or {})), **layout)


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        (
            "hybrid.cuts-by-stages",
            hybrid("*|-|*-", pp=2),
            "model.pattern has 3 stages, and the layout has pp 2 x vpp 1 = 2",
            hybrid("*-|*-", pp=2),
        ),
        (
            "hybrid.interleaving-needs-cuts",
            hybrid("*-*-", pp=2, vpp=2),
            "vpp 2 without cuts: model.pattern needs | between its pp 2 x vpp 2 chunks",
            hybrid("*|-|*|-", pp=2, vpp=2),
        ),
        (
            "hybrid.heads-by-ranks",
            hybrid("M-", tp=2, cp=8),
            "model.heads 8 is not divisible by tp 2 x cp 8 = 16: 8 = 0 * 16 + 8",
            hybrid("M-", tp=2, cp=4),
        ),
        (
            "hybrid.heads-by-ranks",
            hybrid("G-", cp=8),
            "model.kv_heads 4 is not divisible by tp 1 x cp 8 = 8: 4 = 0 * 8 + 4",
            hybrid("M-", cp=8),
        ),
        (
            "hybrid.groups-by-context",
            hybrid("M-", {"hidden": 96, "heads": 12, "kv_heads": 4}, cp=6),
            "model.kv_heads 4 / tp 1 = 4 groups, neither a multiple nor a divisor of cp 6",
            hybrid("M-", {"hidden": 96, "heads": 12, "kv_heads": 6}, cp=6),
        ),
        (
            "hybrid.stages",
            hybrid("*-*-", pp=2, stages="Ett|ttL"),
            "model.pattern with stages, embedding_as_layer or loss_as_layer: cut the pattern with | instead",
            hybrid("*-*-", pp=2, first_stage_layers=1),
        ),
        (
            "hybrid.stages",
            hybrid("*|-*-", pp=2, first_stage_layers=1),
            "model.pattern is cut with |, so first_stage_layers and last_stage_layers must not be set",
            hybrid("*|-*-", pp=2),
        ),
        ("hybrid.parts", hybrid("*-", {"mtp": MtpConfig()}), WITHOUT, hybrid("*-")),
        ("hybrid.parts", hybrid("*-", {"mla": MlaConfig()}), WITHOUT.replace("mtp", "mla"), hybrid("*-")),
    ],
)
def test_a_rule_of_patterns_rejects_and_allows(rule: str, wrong: CellConfig, expected: str, right: CellConfig) -> None:
    assert reason(rule, wrong) == expected
    assert reason(rule, right) is None


def test_cuts_mean_nothing_on_one_rank_and_may_be_uneven() -> None:
    assert reason("hybrid.cuts-by-stages", hybrid("*|-*-")) is None
    assert reason("layout.layers-by-pp", hybrid("*|-*", pp=2)) is None
    assert reason("layout.layers-by-pp", hybrid("*-*", pp=2)) is not None


def experts(**moe: object) -> ModelConfig:
    return ModelConfig(moe=MoeConfig(**moe))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        ("layout.etp-needs-experts", cell(tp=2, etp=1), "the model is dense", cell(tp=2, etp=1, model=experts())),
        (
            "layout.ep-by-ranks",
            cell(tp=2, etp=1, ep=4, model=experts()),
            "tp 2 x dp 1 x cp 1 = 2 is not divisible by etp 1 x ep 4 = 4",
            cell(tp=2, etp=1, ep=2, model=experts()),
        ),
        (
            "moe.ffn-by-tp",
            cell(dp=2, etp=2, model=experts(ffn=63)),
            "model.moe.ffn 63 is not divisible by etp 2",
            cell(tp=2, etp=1, model=experts(ffn=63)),
        ),
        (
            "moe.shared-ffn-by-tp",
            cell(tp=2, model=experts(shared_ffn=33)),
            "model.moe.shared_ffn 33 is not divisible by tp 2",
            cell(tp=2, model=experts(shared_ffn=32)),
        ),
        (
            "moe.bias-needs-sigmoid",
            cell(model=experts(expert_bias=True)),
            "set score_function: sigmoid",
            cell(model=experts(expert_bias=True, score_function="sigmoid")),
        ),
        (
            "moe.padding-needs-capacity",
            cell(model=experts(pad_to_capacity=True)),
            "without a capacity_factor",
            cell(model=experts(pad_to_capacity=True, capacity_factor=1.0)),
        ),
        (
            "moe.flex-dispatcher",
            cell(model=experts(dispatcher="flex")),
            "kernels of DeepEP, HybridEP or NCCL",
            cell(model=experts(dispatcher="alltoall")),
        ),
        (
            "moe.grouped-adapters",
            cell("reference", model=replace(experts(grouped=True), peft=PeftConfig())),
            "has a stand-in for them",
            cell("reference", model=replace(experts(), peft=PeftConfig())),
        ),
        (
            "moe.dropping",
            cell(cp=2, model=experts(capacity_factor=1.0)),
            "a rank of tp 1 x cp 2 drops tokens by its own part of a row",
            cell(cp=2, model=experts(capacity_factor=2.0)),
        ),
        (
            "moe.dropping",
            cell("sft", model=experts(capacity_factor=1.0)),
            "rows of packing sft are not those of its control",
            cell(dp=2, model=experts(capacity_factor=1.0)),
        ),
        (
            "attention.skip-needs-window",
            cell(model=ModelConfig(window_skip=2)),
            "without a window",
            cell(model=ModelConfig(window_skip=2, window=0)),
        ),
    ],
)
def test_a_rule_of_experts_rejects_a_cell_and_allows_the_nearest_one(
    rule: str, wrong: CellConfig, expected: str, right: CellConfig
) -> None:
    assert expected in (reason(rule, wrong) or "")
    assert reason(rule, right) is None


def adapted(rank: int = 4, **model: object) -> ModelConfig:
    return ModelConfig(peft=PeftConfig(rank=rank), **model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        (
            "peft.rank-by-tp",
            cell(tp=4, model=adapted(6)),
            "model.peft.rank 6 is not divisible by tp 4",
            cell(tp=2, model=adapted(6)),
        ),
        (
            "peft.rank-by-tp",
            cell(dp=4, etp=4, model=adapted(6, moe=MoeConfig())),
            "model.peft.rank 6 is not divisible by tp 4",
            cell(dp=4, etp=4, model=adapted(8, moe=MoeConfig())),
        ),
        ("peft.parts", cell(model=adapted(mtp=MtpConfig())), "model.peft with model.mtp", cell(model=adapted())),
        (
            "peft.parts",
            cell(model=adapted(layers=2, pattern="*-")),
            "model.peft with model.pattern",
            cell(model=ModelConfig(layers=2, pattern="*-")),
        ),
        (
            "peft.latent-attention",
            cell(model=adapted(mla=MlaConfig())),
            "latent attention has no linear_qkv",
            cell(model=ModelConfig(mla=MlaConfig())),
        ),
    ],
)
def test_a_rule_of_adapters_rejects_a_cell_and_allows_the_nearest_one(
    rule: str, wrong: CellConfig, expected: str, right: CellConfig
) -> None:
    assert expected in (reason(rule, wrong) or "")
    assert reason(rule, right) is None


IMAGES = DocumentsConfig(mode="file", lengths=(16,), images=1)


def seeing(path: str = "bridge_in_batch", *, vision: dict[str, Any] | None = None, **more: Any) -> CellConfig:
    parts = {name: more.pop(name) for name in ("moe",) if name in more}
    size = 1 if path == "unpacked" else 2
    return cell(path, micro_batch_size=size, model=ModelConfig(vision=VisionConfig(**(vision or {})), **parts), **more)


@pytest.mark.parametrize(
    ("rule", "wrong", "expected", "right"),
    [
        ("vision.images-have-a-path", seeing("reference"), "packing reference, which passes no images", seeing()),
        ("vision.images-have-a-path", seeing("bridge_offline"), "packing bridge_offline", seeing("unpacked")),
        (
            "vision.images-need-a-tower",
            replace(cell(), documents=IMAGES),
            "documents have images, and the model has no vision",
            replace(seeing(), documents=IMAGES),
        ),
        (
            "vision.chats-have-an-answer",
            replace(seeing(), documents=mix("uncut", 64, 2)),
            "documents uncut have one that is all prompt",
            replace(seeing(), documents=mix("images", 64, 2)),
        ),
        ("vision.no-other-parts", seeing(moe=MoeConfig()), "model.vision with model.moe", seeing()),
        ("vision.one-chunk-per-stage", seeing(pp=2, vpp=2), "vpp 2: Qwen3VLModel sets", seeing(pp=2)),
        (
            "vision.deepstack-on-first-stage",
            seeing(vision={"layers": 3, "deepstack": 3}, pp=2),
            "the first stage has 2 of 4 layers at pp 2",
            seeing(vision={"layers": 3, "deepstack": 2}, pp=2),
        ),
        (
            "vision.tower-by-tp",
            seeing(vision={"ffn": 63}, tp=2),
            "model.vision.ffn 63 is not divisible by tp 2",
            seeing(tp=2),
        ),
        (
            "attention.kernel-vision",
            replace(seeing(), attention="te"),
            "those that upstream gives it, Transformer Engine's, compute on a GPU only",
            replace(seeing(), attention="reference"),
        ),
    ],
)
def test_a_rule_of_vision_rejects_and_allows(rule: str, wrong: CellConfig, expected: str, right: CellConfig) -> None:
    assert expected in str(reason(rule, wrong))
    assert reason(rule, right) is None


@pytest.mark.parametrize(
    ("vision", "key", "expected"),
    [
        ({"sections": (2, 2, 1)}, "vision.sections", "half of the head size is 4, and 2 + 2 + 1 = 5"),
        ({"heads": 3}, "vision.heads", "hidden 32 is not divisible by 4 x heads 3"),
        ({"deepstack": 3}, "vision.deepstack", "the tower has 2 layers, and deepstack is 3"),
    ],
)
def test_a_tower_that_no_layout_can_run_is_named(vision: dict[str, Any], key: str, expected: str) -> None:
    ((found, message),) = model_problems(ModelConfig(vision=VisionConfig(**vision)))
    assert (found, expected in message) == (key, True)
