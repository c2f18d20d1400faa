from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.axes import axes, dotted, with_value
from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.packing.documents import DocumentsConfig, mix
from harness.core.packing.options import PackingOptions
from harness.core.setting import keys_of
from harness.features.adapters.config import PeftConfig
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.matrix.arguments import owner_of
from harness.matrix.rules.table import rejections
from harness.runtime.device.placement import choose_device
from harness.upstreams.megatron_lm.node_files import lines
from harness.upstreams.megatron_lm.node_flags import flags
from tests.runtime.conftest import config

CPU = choose_device(0, 1, "cpu")


def test_the_command_line_holds_data_layout_and_optimizer() -> None:
    found = flags(config("sft", tp=2, dp=2), Path("/data"), CPU)
    assert {
        "--sft",
        "--tensor-model-parallel-size=2",
        "--sequence-parallel",
        "--train-data-path",
        "/data/trained-0.jsonl",
        "--tokenizer-model=/data/tokenizer",
        "--clip-grad=0.0",
        "--transformer-impl=local",
        "--distributed-backend=gloo",
        "--untie-embeddings-and-output-weights",
    } <= set(found)
    assert len({flag.partition("=")[0] for flag in found}) == len(found)  # none twice


def test_the_global_batch_is_the_rows_of_a_step() -> None:
    cell = config("sft", dp=2)
    rows = sum(len(batch.rows) for replica in cell.micro_batches(0) for batch in replica)
    assert f"--global-batch-size={rows}" in flags(cell, Path("/data"), CPU)


def test_an_argument_of_the_matrix_replaces_the_harness_own() -> None:
    given = Arguments(merged({"clip_grad": ("0.5",), "recompute_modules": ("core_attn", "mlp")}))
    found = flags(replace(config("sft", tp=2), args=given, recompute="selective"), Path("/data"), CPU)
    assert found[-4:] == ["--clip-grad=0.5", "--recompute-modules", "core_attn", "mlp"]
    assert [flag for flag in found if flag.startswith("--clip-grad")] == ["--clip-grad=0.5"]
    assert "--recompute-granularity=selective" in found


# What a matrix may pass on although the harness passes it too; everything else that it passes has an owner.
REPLACEABLE = {
    "log_interval",
    "clip_grad",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "accumulate_allreduce_grads_in_fp32",
    "sft_tokenizer_prompt_format",
    "use_cpu_initialization",
    "no_create_attention_mask_in_dataloader",
    "no_persist_layer_norm",
    "no_rope_fusion",
    "no_masked_softmax_fusion",
    "no_gradient_accumulation_fusion",
    "no_bias_swiglu_fusion",
    "no_bias_dropout_fusion",
    "cp_comm_type",
    "sequence_packing_scheduler",
}


def test_every_flag_of_the_harness_is_owned_by_the_matrix_or_replaceable() -> None:
    """Otherwise a profile could change what plan, control and evidence are computed from."""
    full = replace(
        config("sft", tp=2, pp=2, vpp=2, cp=2), recompute="full", distributed_optimizer="overlap", dtype="bf16"
    )
    tied = replace(
        full, attention="te", options=PackingOptions(average_in_collective=True), model=ModelConfig(tied=True)
    )
    others = [replace(full, data_path=name) for name in ("inter_document", "scheduler")]
    words = [word for cell in (full, tied, *others) for word in flags(cell, Path(), CPU) if word.startswith("--")]
    passed = {word[2:].partition("=")[0].replace("-", "_") for word in words}
    assert {name for name in passed if not owner_of(name)} == REPLACEABLE


def test_a_hybrid_model_has_its_pattern_from_which_upstream_takes_virtual_stages() -> None:
    model = ModelConfig(layers=4, pattern="G|-|*|-")
    cut = flags(replace(config("sft", pp=2, vpp=2), model=model), Path(), CPU)
    assert {"--hybrid-layer-pattern=G|-|*|-", "--linear-num-key-heads=4", "--mamba-num-heads=8"} <= {*cut}
    spec = cut.index("--spec")
    assert cut[spec + 1 : spec + 3] == ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
    assert not any(flag.startswith("--num-virtual-stages") for flag in cut)
    assert "--hybrid-layer-pattern=G-*-" in flags(replace(config("sft"), model=model), Path(), CPU)
    passed = {flag[2:].partition("=")[0].replace("-", "_") for flag in cut if flag.startswith("--")}
    plain = {flag[2:].partition("=")[0].replace("-", "_") for flag in flags(config("sft", pp=2), Path(), CPU)}
    assert [name for name in passed - plain if not owner_of(name)] == []


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"distributed_optimizer": "on"}, {"--use-distributed-optimizer"}),
        ({"distributed_optimizer": "overlap"}, {"--overlap-grad-reduce", "--overlap-param-gather"}),
        ({"recompute": "selective"}, {"--recompute-granularity=selective"}),
        ({"recompute": "full"}, {"--recompute-granularity=full", "--recompute-num-layers=1"}),
        ({"dtype": "bf16"}, {"--bf16"}),
    ],
)
def test_an_axis_is_a_flag(changes: dict[str, str], wanted: set[str]) -> None:
    plain = config("sft")
    assert not wanted & set(flags(plain, Path("/data"), CPU))
    assert wanted <= set(flags(replace(plain, **changes), Path("/data"), CPU))  # type: ignore[arg-type]


OTHER_VALUES: dict[str, Any] = {
    "tp": 2,
    "pp": 2,
    "cp": 2,
    "dp": 2,
    "ep": 2,
    "etp": 2,
    "vpp": 2,
    "sp": True,
    "packing": "reference",
    "micro_batch_size": 2,
    "dtype": "bf16",
    "attention": "te",
    "recompute": "full",
    "distributed_optimizer": "on",
    "documents": "uncut",
    "pad_seq_to_mult": 4,
    "calculate_per_token_loss": False,
    "average_in_collective": True,
    "model.layers": 8,
    "model.hidden": 128,
    "model.heads": 4,
    "model.kv_heads": 2,
    "model.head_size": 12,
    "model.position_embedding": "learned_absolute",
    "model.rotary_percent": 0.5,
    "model.rotary_interpolation": 2,
    "model.rotary_interleaved": True,
    "model.rope_scaling": True,
    "model.rope_scaling_factor": 4.0,
    "model.no_rope_freq": 2,
    "model.normalization": "LayerNorm",
    "model.norm_epsilon": 0.1,
    "model.layernorm_1p": True,
    "model.activation": "gelu",
    "model.biases": True,
    "model.qkv_bias": True,
    "model.ffn": 256,
    "model.vocab": 256,
    "model.rope_base": 500,
    "model.tied": True,
    "model.rope_fusion": True,
    "model.softmax": "learnable",
    "model.window": 0,
    "model.window_skip": 2,
    "model.softmax_scale": 0.5,
    "model.qk_layernorm": True,
    "model.gathered_logits": True,
    "model.pattern": "G-*-",
    "train.label_smoothing": 0.1,
    "groups": "explicit",
    "model.moe": MoeConfig(),
    "model.mtp": MtpConfig(),
    "model.mla": MlaConfig(),
    "model.peft": PeftConfig(),
    "train.steps": 3,
    "train.global_batch": 4,
    "train.seq_length": 32,
    "train.lr": 0.5,
    "train.seed": 7,
    "train.eval_interval": 1,
    "train.eod_mask_loss": False,
    "train.lr_decay_style": "cosine",
    "train.lr_decay_iters": 7,
    "train.min_lr": 1e-4,
    "train.lr_warmup_iters": 1,
    "train.lr_warmup_fraction": 0.5,
    "train.lr_warmup_init": 1e-4,
    "train.lr_wsd_decay_iters": 1,
    "train.lr_wsd_decay_style": "linear",
    "train.start_weight_decay": 0.0,
    "train.end_weight_decay": 0.1,
    "train.weight_decay_incr_style": "linear",
    "resume": "same",
    "data_files": 2,
    "pp_before_dp": True,
    "first_stage_layers": 1,
    "last_stage_layers": 1,
    "embedding_as_layer": True,
    "loss_as_layer": True,
    "stages": "Ettt|tL",
}
ELSEWHERE = {
    "device": "the flags are those of the device that the rank has chosen",
    "stack": "the code that is run",
    "trainer": "the trainer itself",
    "args": "a profile; its arguments are tested above",
    "lift": "rules are decided in the plan",
    "timed": "no trainer of upstream is timed",
    "train.save_step": "with `resume`",
    "model.vision": "a rule: the script trains on text alone",
    "model.builder": "a rule: models of plug-ins are built in the harness's own loop",
    **dict.fromkeys(
        (
            "pad_to_max_length",
            "pad_row_to_mult",
            "pad_cu_seqlens",
            "metadata",
            "remove_microbatch_padding",
            "fuse_loss",
            "packing_algorithm",
            "max_tokens_per_microbatch",
            "use_sequence_packing",
            "use_dynamic_bsz",
            "balance_batch",
        ),
        "not of sft",
    ),
}


def asked_of_upstream(cell: CellConfig) -> tuple[list[str], list[str]]:
    rows = [(step, row) for step in range(cell.train.passes) for row in cell.rows(step)]
    return flags(cell, Path("/data"), CPU), lines(cell, rows)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_no_axis_is_dropped_in_silence(name: str) -> None:
    """Each changes the command line or the data, or a rule rejects the cell."""
    plain = replace(config("sft"), trainer="megatron")
    axis = (axes() | dotted())[name]
    if name == "documents":
        changed = replace(plain, documents=mix("uncut", 64, 2))
    else:
        changed = with_value(plain, axis, OTHER_VALUES[name])
    assert rejections(changed) or asked_of_upstream(changed) != asked_of_upstream(plain)


OF_EXPERTS: dict[str, Any] = {
    "experts": 8,
    "topk": 1,
    "ffn": 32,
    "aux_loss": "aux_loss",
    "aux_loss_coeff": 0.5,
    "dispatcher": "allgather",
    "padding_mask": True,
    "z_loss_coeff": 0.1,
    "score_function": "softmax",
    "expert_bias": False,
    "bias_rate": 0.5,
    "shared_ffn": 32,
    "shared_gate": True,
    "capacity_factor": 1.5,
    "drop_policy": "position",
    "pad_to_capacity": True,
    "grouped": True,
    "layer_freq": "2",
}


@pytest.mark.parametrize("name", OF_EXPERTS)
def test_no_setting_of_experts_is_dropped_in_silence(name: str) -> None:
    moe = MoeConfig(
        score_function="sigmoid", expert_bias=True, capacity_factor=2.0, aux_loss="seq_aux_loss", drop_policy="probs"
    )
    plain = replace(config("sft"), trainer="megatron", model=ModelConfig(moe=moe))
    changed = replace(plain, model=ModelConfig(moe=replace(moe, **{name: OF_EXPERTS[name]})))
    assert rejections(changed) or asked_of_upstream(changed) != asked_of_upstream(plain)
    assert OF_EXPERTS.keys() == keys_of(MoeConfig).keys()


def test_every_axis_is_tried() -> None:
    assert OTHER_VALUES.keys() | ELSEWHERE.keys() == axes().keys() | dotted().keys()


def test_the_scheduler_reads_documents_of_its_data_sets() -> None:
    chats = set(flags(replace(config("scheduler"), trainer="megatron"), Path("/data"), CPU))
    assert {"--use-varlen-dataset", "--sequence-packing-scheduler=dp_balanced"} <= chats
    assert f"--global-batch-size={config('scheduler').train.global_batch}" in chats and "--sft" not in chats
    mock = replace(
        config("sft_scheduler"), trainer="megatron", documents=DocumentsConfig(mode="distribution", mock=True)
    )
    found = set(flags(mock, Path("/data"), CPU))
    assert {"--sft", "--mock-data", "--sft-mock-dataset-config-json=/data/mock.json"} <= found
    assert "--train-data-path" not in found
    other = set(flags(replace(mock, data_path="scheduler"), Path("/data"), CPU))
    assert {"--use-varlen-dataset", "--varlen-mock-dataset-config-json=/data/mock.json"} <= other
