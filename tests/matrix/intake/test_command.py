"""Shell text: which command trains, and with which words."""

import pytest

from harness.matrix.intake.command import command_in, flags_of, overrides_of

SCRIPTS = ("pretrain_gpt.py",)


def test_launcher_script_and_arguments_are_told_apart() -> None:
    command = command_in("OMP_NUM_THREADS=1 torchrun --nproc_per_node=4 --nnodes 2 x/pretrain_gpt.py --bf16", SCRIPTS)
    assert (command.script, command.words, command.ranks) == ("x/pretrain_gpt.py", ("--bf16",), 8)


def test_arguments_alone_are_a_command_without_a_script() -> None:
    command = command_in("--bf16 \\\n  --lr 1e-5  # small\n", SCRIPTS)
    assert (command.script, command.words, command.ranks) == ("", ("--bf16", "--lr", "1e-5"), None)


def test_variables_defaults_and_arrays_are_replaced() -> None:
    script = """
    TP=${TP:-2}   # of our nodes
    SIZES=(
        --tensor-model-parallel-size $TP
        "--split 99,1,0"
    )
    SIZES+=(--bf16)
    torchrun pretrain_gpt.py ${SIZES[@]} --save ${1:-out}/$TP 2>&1 | tee log
    """
    words = ("--tensor-model-parallel-size", "2", "--split", "99,1,0", "--bf16", "--save", "out/2")
    assert command_in(script, SCRIPTS).words == words


def test_a_variable_that_nothing_assigns_is_named() -> None:
    assert command_in("torchrun pretrain_gpt.py --lr $LR --seed ${SEED}", SCRIPTS).missing == ("LR", "SEED")


def test_a_variable_of_another_command_is_not_missing() -> None:
    assert command_in("echo $ANYTHING\ntorchrun pretrain_gpt.py --bf16", SCRIPTS).missing == ()


def test_the_last_training_command_counts() -> None:
    assert command_in("python pretrain_gpt.py --a\npython pretrain_gpt.py --b", SCRIPTS).words == ("--b",)


def test_text_without_a_command_says_what_was_looked_for() -> None:
    with pytest.raises(ValueError, match=r"no word ends with pretrain_gpt\.py"):
        command_in("make train", SCRIPTS)


def test_flags_have_the_types_of_their_writing() -> None:
    words = ["--bf16", "--lr=1e-5", "--recompute-modules", "core_attn", "mlp", "--seed", "-1"]
    assert flags_of(words) == {"bf16": True, "lr": "1e-5", "recompute_modules": ["core_attn", "mlp"], "seed": "-1"}


def test_a_word_that_belongs_to_no_flag_is_refused() -> None:
    with pytest.raises(ValueError, match="'train' does not belong to an argument"):
        flags_of(["train", "--bf16"])


def test_overrides_are_read_without_their_signs() -> None:
    assert overrides_of(["main", "a.b=1", "+c=[1,2]", "~d=x"]) == {"a.b": "1", "c": "[1,2]", "d": "x"}


def test_an_operator_in_the_value_of_a_variable_does_not_end_the_command() -> None:
    words = ("--model", "<path of it>", "--bf16")
    assert command_in('M="<path of it>"\ntorchrun pretrain_gpt.py --model "$M" --bf16 | tee x', SCRIPTS).words == words


def test_arithmetic_is_computed_and_texts_of_several_lines_are_one() -> None:
    value = "ENV='{\n 1\n}'"
    script = f'N=$((1024 * 2))\n{value}\nray --env="$ENV" -- pretrain_gpt.py --seq-length $((N + 8)) --bf16 "$@"'
    assert command_in(script, SCRIPTS).words == ("--seq-length", "2056", "--bf16")
