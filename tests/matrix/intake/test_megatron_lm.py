"""Command lines and logs of Megatron-LM in the words of a matrix."""

from typing import Any

import pytest

from harness.matrix.intake.read import read, translate
from harness.matrix.intake.run import Translation

LAYOUT = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --context-parallel-size 2"
MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights --normalization RMSNorm "
    "--position-embedding-type rope --hidden-dropout 0 --attention-dropout 0"
)


def translated(flags: str = "", launcher: str = "torchrun") -> Translation:
    text = f"{launcher} pretrain_gpt.py {LAYOUT} {MODEL} --sft {flags}"
    return translate(read(text, None, "train.sh"))


def reason_of(result: Translation, setting: str) -> str:
    return next(entry.reason for entry in result.left_out if entry.setting.startswith(setting))


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("", "tp", 4),
        ("", "sp", False),
        ("--sequence-parallel", "sp", True),
        ("", "model.kv_heads", 8),
        ("", "model.ffn", 10880),
        ("--ffn-hidden-size 14336", "model.ffn", 14336),
        ("--num-layers-per-virtual-pipeline-stage 4", "vpp", 4),
        ("--num-virtual-stages-per-pipeline-rank 2", "vpp", 2),
        ("", "dtype", "fp32"),
        ("--bf16", "dtype", "bf16"),
        ("--use-distributed-optimizer", "distributed_optimizer", "on"),
        (
            "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
            "distributed_optimizer",
            "overlap",
        ),
        ("--num-experts 64 --moe-router-topk 6", "model.moe.topk", 6),
        ("--num-experts 64 --moe-layer-freq ([0]*1+[1]*31)", "model.moe.layer_freq", f"[0{',1' * 31}]"),
        ("--num-experts 64 --moe-grouped-gemm", "model.moe.grouped", True),
        ("--num-experts 64 --moe-layer-freq 2", "model.moe.layer_freq", "2"),
        ("--multi-latent-attention", "model.mla.kv_lora_rank", 32),
        ("--window-size 1024,0", "model.window", 1024),
        ("--kv-channels 256", "model.head_size", 256),
        ("--norm-epsilon 1e-6", "model.norm_epsilon", 1e-6),
        ("--apply-layernorm-1p", "model.layernorm_1p", True),
        ("--rotary-percent 0.5", "model.rotary_percent", 0.5),
        ("--use-rope-scaling --rope-scaling-factor 32", "model.rope_scaling_factor", 32.0),
        ("--no-rope-freq 4", "model.no_rope_freq", 4),
        ("--add-qkv-bias", "model.qkv_bias", True),
        ("", "model.biases", False),
        ("", "model.activation", "swiglu"),
        ("--mtp-num-layers 1", "model.mtp.layers", 1),
        ("--calculate-per-token-loss", "packing_options.calculate_per_token_loss", True),
        ("", "packing_options.calculate_per_token_loss", False),
    ],
)
def test_a_flag_is_a_key(flags: str, key: str, value: Any) -> None:
    assert translated(flags).keys[key] == value


def test_replicas_follow_from_the_launcher() -> None:
    assert translated(launcher="torchrun --nproc-per-node 8 --nnodes 4").keys["dp"] == 2


def test_ranks_that_the_layout_does_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="12 ranks are not divisible by tp x pp x cp = 4 x 2 x 2 = 16"):
        translated(launcher="torchrun --nproc-per-node 12")


@pytest.mark.parametrize(
    ("switches", "path"),
    [
        ("--sft", "sft"),
        ("--use-varlen-dataset --sequence-packing-scheduler dp_balanced", "scheduler"),
        ("--sft --sequence-packing-scheduler dp_balanced", "sft_scheduler"),
        ("--dataloader-inter-document-masking", "inter_document"),
    ],
)
def test_the_switch_of_the_run_names_the_data_path(switches: str, path: str) -> None:
    assert translate(read(f"pretrain_gpt.py {switches}", None, "x")).packing == path


def test_a_run_that_does_not_pack_says_so() -> None:
    result = translate(read("pretrain_gpt.py --bf16", None, "x"))
    assert (result.packing, "--sft" in result.not_packed) == ("", True)


def test_what_upstream_computes_by_default_counts_as_given() -> None:
    result = translate(read("pretrain_gpt.py --sft", None, "x"))
    assert result.args["clip_grad"] == ("1.0",)
    assert reason_of(result, "--hidden-dropout 0.1") == "dropout is 0, since results are compared exactly"


def test_a_model_of_which_nothing_is_said_is_that_of_upstream() -> None:
    """GPT-3: upstream's defaults, unlike the harness's."""
    keys = translate(read("pretrain_gpt.py --sft", None, "x")).keys
    of_model = ("activation", "biases", "normalization", "position_embedding", "tied")
    assert [keys[f"model.{name}"] for name in of_model] == ["gelu", True, "LayerNorm", "learned_absolute", True]
    older = translate(read("pretrain_gpt.py --sft --use-rotary-position-embeddings --squared-relu", None, "x")).keys
    assert (older["model.position_embedding"], older["model.activation"]) == ("rope", "squared_relu")


def test_biases_of_experts_are_left_out_with_the_reason() -> None:
    result = translate(read("pretrain_gpt.py --sft --num-experts 8", None, "x"))
    assert (result.keys["model.biases"], result.keys["model.qkv_bias"]) == (False, True)
    assert "no biases of experts" in reason_of(result, "no --disable-bias-linear")


def test_an_unknown_argument_is_passed_on() -> None:
    assert translated("--my-fork-flag 3").args["my_fork_flag"] == ("3",)


def test_data_and_files_are_left_out_with_the_reason() -> None:
    assert "tokenizer" in reason_of(translated("--tokenizer-model m"), "--tokenizer-model m")


LOG = """
[default0]:using world size: 16, data-parallel size: 1
[default0]:------------------------ arguments ------------------------
[default0]:  add_bias_linear ................................. False
[default0]:  bf16 ............................................ True
[default0]:  context_parallel_size ........................... 2
[default0]:  my_fork_flag .................................... 3
[default0]:  recompute_granularity ........................... selective
[default0]:  recompute_modules ............................... ['core_attn', 'mlp']
[default0]:  sft ............................................. True
[default0]:  swiglu .......................................... True
[default0]:  tensor_model_parallel_size ...................... 4
[default0]:  transformer_pipeline_model_parallel_size ........ 2
[default0]:  world_size ...................................... 16
[default0]:-------------------- end of arguments ---------------------
"""


def test_a_log_is_read_with_its_prefixes() -> None:
    run = read(LOG, None, "train.log")
    result = translate(run)
    assert run.source == "the arguments in train.log"
    assert (result.keys["tp"], result.keys["cp"], result.keys["dp"], result.packing) == (4, 2, 2, "sft")
    assert result.args["recompute_modules"] == ("core_attn", "mlp")


def test_of_a_log_nothing_unknown_is_passed_on() -> None:
    result = translate(read(LOG, None, "train.log"))
    assert "my_fork_flag" not in result.args
    assert "defaults" in reason_of(result, "--my-fork-flag 3")


def test_a_shell_variable_without_a_value_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="without a value: TP;"):
        read("torchrun pretrain_gpt.py --tensor-model-parallel-size $TP", None, "x")


def test_a_configuration_of_nobody_says_what_is_read() -> None:
    with pytest.raises(ValueError, match="a configuration of no project that the harness knows"):
        read("a: 1", {"a": 1}, "x.yaml")
