"""`args`, `profiles` and axes of arguments, from the file to the cells."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.upstream_config import HARMLESS
from harness.matrix.arguments import MAX_ARGUMENTS, as_written, owner_of, read_flags, words_of
from harness.matrix.expansion.expand import expand
from harness.matrix.load import resolved
from tests.matrix.helpers import expand_axes, matrix_of, names, problems_of

SFT = {"packing": "sft", "trainer": "megatron"}
PASTED = """torchrun --nproc-per-node 8 pretrain_gpt.py \\
    --tensor-model-parallel-size 4 --num-layers=32 \\
    --clip-grad 1.0  # as last night
    --recompute-modules core_attn mlp --overlap-grad-reduce --tokenizer-model /data/tokenizer
"""


def given_to(**sections: Any) -> list[str]:
    """The command lines of a matrix's cells."""
    matrix = {**SFT, **sections.pop("matrix", {})}
    cells = expand_axes(matrix, **sections).cells
    return [" ".join(cell.config.args.flags()) for cell in cells if cell.role == "cell"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, None),
        (False, None),
        (True, ()),
        (3, ("3",)),
        (1e-8, ("1e-08",)),
        ("a b", ("a b",)),
        ([1, "x"], ("1", "x")),
    ],
)
def test_values_of_a_file_become_words(value: Any, words: tuple[str, ...] | None) -> None:
    assert words_of(value) == words


@pytest.mark.parametrize("value", [{}, [], [True], [[1]], "", "--clip-grad", "a\nb", "x" * 1001])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not a value of an argument; allowed: "):
        words_of(value)


def test_a_pasted_command_line_is_read() -> None:
    assert read_flags(PASTED) == {
        "tensor_model_parallel_size": ("4",),
        "num_layers": ("32",),
        "clip_grad": ("1.0",),
        "recompute_modules": ("core_attn", "mlp"),
        "overlap_grad_reduce": (),
        "tokenizer_model": ("/data/tokenizer",),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--lr $LR", "has a shell variable or command; write its value"),
        ("--lr `cat lr`", "has a shell variable or command; write its value"),
        ("--spec 'a", "is not a command line: No closing quotation"),
        ("clip-grad 1", "'clip-grad' does not belong to an argument; allowed: --name, --name value, --name=value"),
        ("--lr 1 -x", "'-x' does not belong to an argument; allowed: --name, --name value, --name=value"),
        ("--=1", "'--=1' is not an argument"),
        ("--lr=", "'' is not a value of an argument"),
    ],
)
def test_text_that_is_no_command_line_is_an_input_error(text: str, message: str) -> None:
    (problem,) = problems_of(matrix=SFT, args=text)
    assert problem.key == "args"
    assert problem.message.startswith(message)


@given(st.dictionaries(st.from_regex("[a-z][a-z_]{0,9}", fullmatch=True), st.lists(st.text("abc-.=1 ", min_size=1))))
def test_what_is_written_is_read_back(layer: dict[str, list[str]]) -> None:
    words = {name: tuple(word for word in values if not word.startswith("--")) for name, values in layer.items()}
    assert {name: words_of(value) for name, value in as_written(words).items()} == words


def test_an_axis_wins_over_a_profile_and_a_profile_over_the_section() -> None:
    sections: dict[str, Any] = {
        "args": {"clip-grad": 1, "adam-eps": "1e-6"},
        "profiles": {"nightly": PASTED},
        "matrix": {"args": [None, "nightly"], "args.clip-grad": [0.1, None]},
    }
    pasted = "--overlap-grad-reduce --recompute-modules core_attn mlp"
    assert given_to(**sections) == [  # cells with the same control one after the other
        "--adam-eps=1e-6 --clip-grad=0.1",
        f"--adam-eps=1e-6 --clip-grad=0.1 {pasted}",
        "--adam-eps=1e-6",
        f"--adam-eps=1e-6 {pasted}",
    ]


def test_names_show_the_profile_and_the_axes_but_not_the_section() -> None:
    made = expand_axes(
        {**SFT, "args": ["nightly"], "args.clip-grad": [None, 0.5]},
        args={"adam-eps": 1e-6},
        profiles={"nightly": "--overlap-grad-reduce"},
    )
    plain = "tp1-pp1-cp1-sft-megatron-trainer-nightly"
    assert names(made) == [plain, f"{plain}-clip-grad-0.5"]
    assert [cell.axes["args.clip_grad"] for cell in made.cells if cell.role == "cell"] == ["", "0.5"]
    assert {cell.axes["args"] for cell in made.cells if cell.role == "cell"} == {"nightly"}


def test_cells_share_a_control_unless_arguments_of_the_optimizer_differ() -> None:
    axes = {"args.clip-grad": [None, 0.5], "args.recompute-granularity": [None, "selective"], "trainer": "megatron"}
    made = expand_axes({"packing": "sft", **axes})
    controls = [cell for cell in made.cells if cell.role == "control"]
    assert [cell.config.args.flags() for cell in controls] == [[], ["--clip-grad=0.5"]]
    assert {cell.control: cell.config.args.text("clip_grad") for cell in made.cells if cell.role == "cell"} == {
        controls[0].id: "",
        controls[1].id: "0.5",
    }


def test_controls_of_arguments_with_the_same_part_of_a_name_are_not_shared() -> None:
    """The name of a cell is cut; numbers that differ only behind it are still different."""
    long = ["0." + "0" * 90 + digit for digit in "12"]
    made = expand_axes({**SFT, "args.clip-grad": long})
    assert len({cell.control for cell in made.cells if cell.role == "cell"}) == 2
    assert all(len(cell.id) <= 200 for cell in made.cells)


def test_a_profile_sets_what_the_matrix_does_not() -> None:
    flags = "--tensor-model-parallel-size 4 --bf16 --use-distributed-optimizer --qk-layernorm --lr 1e-5 --clip-grad 1"
    matrix = matrix_of(matrix={**SFT, "args": [None, "run"]}, profiles={"run": flags})
    made = [cell.config for cell in expand(matrix).cells if cell.role == "cell"]
    taken = [
        (one.layout.tp, one.dtype, one.distributed_optimizer, one.model.qk_layernorm, one.train.lr) for one in made
    ]
    assert taken == [(1, "fp32", "off", False, 1e-3), (4, "bf16", "on", True, 1e-5)]
    assert set(matrix.profiles["run"].taken) == {
        "tp",
        "dtype",
        "distributed_optimizer",
        "model.qk_layernorm",
        "train.lr",
    }


def test_a_layout_of_the_matrix_is_instead_of_the_profiles() -> None:
    flags = "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --clip-grad 1"
    matrix = matrix_of(matrix={**SFT, "args": "run", "tp": [1, 2]}, profiles={"run": flags})
    assert {(cell.config.layout.tp, cell.config.layout.pp) for cell in expand(matrix).cells} == {(1, 1), (2, 1)}


@pytest.mark.parametrize("section", ["axis", "section"])
def test_a_profile_that_contradicts_the_matrix_is_an_input_error(section: str) -> None:
    of_matrix: dict[str, dict[str, Any]] = {
        "axis": {"matrix": {**SFT, "args": "run", "train.lr": [1e-3]}},
        "section": {"matrix": {**SFT, "args": "run"}, "train": {"lr": 1e-3}},
    }
    (problem,) = problems_of(**of_matrix[section], profiles={"run": "--lr 1e-5 --clip-grad 1"})
    assert problem.message == "the profile has train.lr 1e-05, and the matrix 0.001"


def test_a_value_that_the_matrix_tries_is_no_contradiction() -> None:
    made = expand_axes({**SFT, "args": ["run"], "dtype": ["fp32", "bf16"]}, profiles={"run": "--bf16 --clip-grad 1"})
    assert {cell.config.dtype for cell in made.cells} == {"fp32", "bf16"}


def test_what_is_left_out_of_a_profile_is_listed_by_the_reason() -> None:
    matrix = matrix_of(matrix={**SFT, "args": "nightly"}, profiles={"nightly": PASTED})
    assert matrix.profiles["nightly"].left_out == {
        "set model.layers under model:": ["--num-layers 32"],
        "the harness writes the documents and the tokenizer that upstream reads": ["--tokenizer-model /data/tokenizer"],
    }


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num-layers", "set model.layers under model:"),
        ("micro-batch-size", "set it by the axis micro_batch_size"),
        ("decoder-first-pipeline-num-layers", "set it by the axis first_stage_layers"),
        ("pipeline-model-parallel-layout", "set it by the axis stages"),
        ("tokenizer-model", "the harness writes the documents and the tokenizer that upstream reads"),
        ("hidden-dropout", "a comparison with a control needs it to be 0"),
        ("dataloader-type", "the packing plan has the order of documents, that of --dataloader-type single"),
    ],
)
@pytest.mark.parametrize("axis", [True, False])
def test_an_argument_that_the_matrix_sets_cannot_be_passed_on(name: str, hint: str, axis: bool) -> None:
    sections = {"matrix": {**SFT, f"args.{name}": [1]}} if axis else {"matrix": SFT, "args": {name: 1}}
    (problem,) = problems_of(**sections)
    assert (problem.message, problem.hint) == (f"--{name} cannot be passed on", hint)


# Argument of Megatron-LM, or field of Megatron-Bridge, that makes another model -> what a user writes instead.
OTHER_MODELS: dict[str, tuple[Any, str]] = {
    "kv-channels": (128, "set model.head_size under model:"),
    "norm-epsilon": (1e-6, "set model.norm_epsilon under model:"),
    "rotary-percent": (0.5, "set model.rotary_percent under model:"),
    "use-rope-scaling": (True, "set model.rope_scaling under model:"),
    "rotary-seq-len-interpolation-factor": (2, "set model.rotary_interpolation under model:"),
    "no-rope-freq": (2, "set model.no_rope_freq under model:"),
    "apply-layernorm-1p": (True, "set model.layernorm_1p under model:"),
    "add-qkv-bias": (True, "set model.qkv_bias under model:"),
    "squared-relu": (True, "set model.activation under model:"),
    "quick-geglu": (True, "set model.activation under model:"),
    "openai-gelu": (True, "upstream reads it in no model"),
    "qk-layernorm": (True, "set model.qk_layernorm under model:"),
    "normalization": ("LayerNorm", "set model.normalization under model:"),
    "optimizer": ("muon", "has Adam"),
    "freeze-all-layers": (True, "the harness compares the gradients of all weights"),
    "num-experts": (8, "set model.moe.experts under model:"),
    "moe-router-score-function": ("sigmoid", "set model.moe.score_function under model:"),
    "untie-embeddings-and-output-weights": (True, "set model.tied under model:"),
}
FIELDS: dict[str, tuple[Any, str]] = {
    "model.kv_channels": (128, "set model.head_size under model:"),
    "model.layernorm_epsilon": (1e-6, "set model.norm_epsilon under model:"),
    "model.layernorm_zero_centered_gamma": (True, "set model.layernorm_1p under model:"),
    "model.rotary_percent": (0.5, "set model.rotary_percent under model:"),
    "model.seq_len_interpolation_factor": (2, "set model.rotary_interpolation under model:"),
    "model.no_rope_freq": (2, "set model.no_rope_freq under model:"),
    "model.add_qkv_bias": (True, "set model.qkv_bias under model:"),
    "model.qk_layernorm": (True, "set model.qk_layernorm under model:"),
    "dist.use_tp_pp_dp_mapping": (True, "the device sets it"),
}


SET_BY_PROFILE = (
    *("qk-layernorm", "untie-embeddings-and-output-weights", "norm-epsilon", "rotary-percent", "use-rope-scaling"),
    *("rotary-seq-len-interpolation-factor", "no-rope-freq", "apply-layernorm-1p", "squared-relu", "quick-geglu"),
    "normalization",
)


@pytest.mark.parametrize("name", [*OTHER_MODELS, *FIELDS])
@pytest.mark.parametrize("place", ["args", "axis", "profile"])
def test_an_argument_that_makes_another_model_is_an_input_error_wherever_it_is(name: str, place: str) -> None:
    """A profile leaves out what the matrix sets, but not what none of its models has."""
    value, hint = (OTHER_MODELS | FIELDS)[name]
    sections: dict[str, dict[str, Any]] = {
        "args": {"matrix": SFT, "args": {name: value}},
        "axis": {"matrix": {**SFT, f"args.{name}": [value]}},
        "profile": {"matrix": {**SFT, "args": "run"}, "profiles": {"run": {name: value, "overlap-grad-reduce": True}}},
    }
    if place == "profile" and name.startswith("dist."):
        pytest.skip("a profile leaves out the whole section, since it has the device's backend")
    if place == "profile" and name in SET_BY_PROFILE:
        pytest.skip("a profile sets it")
    (problem,) = problems_of(**sections[place])
    flag = name if "." in name else f"--{name}"
    assert problem.message.startswith(flag)
    assert hint in (problem.hint or "")


@pytest.mark.parametrize(
    "flags",
    [
        "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --kv-channels 128 --norm-epsilon 1e-05",
        "--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope --rotary-percent 1.0",
        "--untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8 --optimizer adam",
    ],
)
def test_a_profile_may_say_what_the_models_have_at_other_sizes(flags: str) -> None:
    profiles = {"run": f"{flags} --overlap-grad-reduce"}
    assert given_to(matrix={"args": "run"}, profiles=profiles) == ["--overlap-grad-reduce"]


def test_a_profile_may_say_what_a_model_of_an_axis_has() -> None:
    flags = "--num-experts 64 --moe-router-topk 8 --moe-router-score-function sigmoid --moe-token-dispatcher-type flex"
    axes = {"args": [None, "run"], "model.moe": [None, {"score_function": "sigmoid"}], "model.window": [8]}
    profiles = {"run": f"{flags} --window-size 128,0 --overlap-grad-reduce"}
    assert "--overlap-grad-reduce" in given_to(matrix=axes, profiles=profiles)


def test_a_profile_with_no_effect_or_that_of_another_is_an_input_error() -> None:
    """Else cells that run the same would have different names."""
    profiles = {"a": "--seq-length 1", "b": "--overlap-grad-reduce", "c": "--overlap-grad-reduce --seq-length 1"}
    empty, same = problems_of(matrix={**SFT, "args": ["a", "b", "c"]}, profiles=profiles)
    assert (empty.key, empty.message) == ("profiles.a", "has no effect: the matrix sets everything in it")
    assert (same.key, same.message) == ("profiles.c", "has the same effect as profile b")


def test_a_profile_that_cannot_be_read_has_this_problem_alone() -> None:
    for written, message in (("--overlap $LR", "has a shell variable or command"), ("", "is empty")):
        (problem,) = problems_of(matrix={**SFT, "args": "a"}, profiles={"a": written})
        assert (problem.key, problem.message[: len(message)]) == ("profiles.a", message)


def test_the_prompt_format_is_one_that_the_conversations_are_written_for() -> None:
    assert given_to(args={"sft-tokenizer-prompt-format": "identity"}) == ["--sft-tokenizer-prompt-format=identity"]
    (problem,) = problems_of(matrix=SFT, args={"sft-tokenizer-prompt-format": "default"})
    assert problem.message.endswith("is not one of nemotron-h-aligned, identity")


@pytest.mark.parametrize("value", ["abc", "-1", "nan", "1e999", [1, 2], True])
def test_arguments_that_a_control_needs_are_one_number(value: Any) -> None:
    (problem,) = problems_of(matrix=SFT, args={"clip-grad": value})
    assert problem.message.endswith("is not one finite number of at least 0")


def test_names_of_profiles_are_checked() -> None:
    unknown, unused = problems_of(matrix={**SFT, "args": "nightyl"}, profiles={"nightly": "--overlap-grad-reduce"})
    assert (unknown.message, unknown.found, unknown.hint) == ("no such profile", "'nightyl'", "did you mean 'nightly'?")
    assert (unused.key, unused.message) == ("profiles.nightly", "no row of the matrix uses this profile")
    (other,) = problems_of(matrix={**SFT, "args": "nightly", "tp": "x"}, profiles={"nightly": "--overlap-grad-reduce"})
    assert other.key == "matrix.tp"  # whether its rows use the profile is not known
    bad, _ = problems_of(matrix=SFT, profiles={"a b": "--overlap-grad-reduce"})
    assert bad.key == "profiles.a b"
    assert bad.message == "must be 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"


def test_too_many_arguments_are_refused() -> None:
    (problem,) = problems_of(matrix=SFT, args={f"x{n}": n for n in range(MAX_ARGUMENTS + 1)})
    assert (problem.message, problem.allowed) == ("too many arguments", f"at most {MAX_ARGUMENTS}")


def test_names_that_are_no_arguments_are_refused() -> None:
    (problem,) = problems_of(matrix=SFT, args={"clip grad": 1})
    assert problem.message == "is not the name of an argument"


def test_the_resolved_matrix_has_them() -> None:
    matrix = matrix_of(
        matrix={**SFT, "args": "nightly", "args.clip-grad": [0.5]},
        args={"adam-eps": 1e-6},
        profiles={"nightly": PASTED},
    )
    written = resolved(matrix)
    assert written["args"] == {"adam_eps": "1e-06"}
    assert written["profiles"]["nightly"] == {
        "tensor_model_parallel_size": "4",
        "num_layers": "32",
        "tokenizer_model": "/data/tokenizer",
        "clip_grad": "1.0",
        "recompute_modules": ["core_attn", "mlp"],
        "overlap_grad_reduce": True,
    }
    again = {key: written[key] for key in ("matrix", "args", "profiles")}
    assert given_to(**again) == given_to(
        matrix=written["matrix"], args={"adam-eps": "1e-06"}, profiles={"nightly": PASTED}
    )


def test_the_harness_applies_arguments_of_the_optimizer_only() -> None:
    made = expand_axes({"packing": "sft", "trainer": ["harness", "megatron"], "args.clip-grad": [0.5]})
    assert len(names(made)) == 2
    made = expand_axes({"packing": "sft", "trainer": ["harness", "megatron"], "args.overlap-grad-reduce": [True]})
    (rejected,) = made.rejected
    assert rejected.rejections[0].rule == "trainer.args"
    assert (
        rejected.rejections[0].reason
        == "trainer is harness, which gets only arguments of the optimizer, not --overlap-grad-reduce"
    )


BRIDGE = {"packing": "bridge_offline", "trainer": "bridge"}


def test_fields_of_megatron_bridge_have_dotted_names() -> None:
    args = {"model.recompute-method": "uniform", "model.bias_dropout_fusion": False, "ddp.bucket_size": None}
    matrix = {
        **BRIDGE,
        "args.ddp.overlap_grad_reduce": [None, True],
        "args.model.recompute-modules": [["core_attn", "mlp"]],
    }
    cells = [cell for cell in expand_axes(matrix, args=args).cells if cell.role == "cell"]
    rest = "model.bias_dropout_fusion=false model.recompute_method=uniform model.recompute_modules=core_attn,mlp"
    assert [" ".join(cell.config.args.flags()) for cell in cells] == [rest, f"ddp.overlap_grad_reduce=true {rest}"]
    assert "ddp.overlap-grad-reduce-true" in cells[1].id


def test_recomputation_by_a_field_is_expected_in_the_records() -> None:
    fields = {"model.recompute_granularity": "full", "model.recompute_method": "block", "model.recompute_num_layers": 1}
    (cell,) = [cell for cell in expand_axes(BRIDGE, args=fields).cells if cell.role == "cell"]
    assert (cell.config.recompute, cell.config.effective_recompute, cell.config.args.recomputed_layers) == (
        "none",
        "full",
        1,
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("model.num_layers", "set model.layers under model:"),
        ("model.tensor_model_parallel_size", "set it by the axis tp"),
        ("model.hidden_dropout", "a comparison with a control needs it to be 0"),
        ("train.global_batch_size", "set train.global_batch under train:"),
        ("dataset.seed", "the harness writes the documents and the tokenizer that upstream reads"),
        ("checkpoint.save", "a cell neither reads nor writes files outside its run directory"),
        ("logger.log_interval", "every step is compared"),
        ("optimizer.clip_grad", "the control needs it too: write clip-grad"),
        ("optimizer.lr", "set train.lr under train:"),
    ],
)
def test_a_field_that_the_matrix_sets_cannot_be_passed_on(name: str, hint: str) -> None:
    (problem,) = problems_of(matrix=BRIDGE, args={name: 1})
    assert (problem.message, problem.hint) == (f"{name} cannot be passed on", hint)


def test_how_a_checkpoint_is_saved_can_be_passed_on() -> None:
    (cell,) = [cell for cell in expand_axes(BRIDGE, args={"checkpoint.async_save": True}).cells if cell.role == "cell"]
    assert cell.config.args.flags() == ["checkpoint.async_save=true"]


@pytest.mark.parametrize("name", ["model..x", "model.", ".x", "Model.x", "model.2x"])
def test_a_name_that_is_no_field_is_refused(name: str) -> None:
    assert problems_of(matrix=BRIDGE, args={name: 1})[0].message == "is not the name of an argument"


def test_no_argument_of_a_harmless_field_is_forbidden_but_those_that_a_matrix_sets() -> None:
    forbidden = {name: owner_of(name) or "set" for name in chain.from_iterable(HARMLESS.values())}
    assert [name for name, why in forbidden.items() if not why.startswith("set")] == []
