"""`harness init --from` and `harness run --from`: a matrix for a training run that somebody has."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from harness.cli.cli import main
from harness.cli.from_run import matrix_of_run
from harness.cli.scaffold import Machine
from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand
from harness.matrix.stacks.recipes import WorkingTree
from tests.goldens import assert_golden

GOLDEN = Path(__file__).parent / "golden"
SFT_8B = """torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --context-parallel-size 2 --sequence-parallel \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
  --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \\
  --position-embedding-type rope --rotary-base 500000 --normalization RMSNorm --swiglu --disable-bias-linear \\
  --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 \\
  --sft --tokenizer-type SFTTokenizer --tokenizer-model meta-llama/Llama-3.1-8B --train-data-path train.jsonl \\
  --micro-batch-size 1 --global-batch-size 64 --train-iters 2000 --lr 1e-5 --bf16 --calculate-per-token-loss \\
  --weight-decay 0.1 --clip-grad 1.0 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \\
  --recompute-granularity selective --log-interval 1 --save /ckpt/out --wandb-project p
"""
CHECKOUT = Machine(cores=2, gpus=0, tree=WorkingTree("/src/x", "megatron-lm"))


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(SFT_8B)


def test_the_whole_file() -> None:
    assert_golden(GOLDEN / "sft_8b.yaml", matrix_of_run("train.sh", CHECKOUT, Path("matrix.yaml")))


@pytest.mark.parametrize("cores", [1, 2, 16, 64])
def test_every_cell_of_the_file_can_run(cores: int) -> None:
    machine = Machine(cores=cores, gpus=0, tree=CHECKOUT.tree)
    Path("matrix.yaml").write_text(matrix_of_run("train.sh", machine, Path("matrix.yaml")))
    made = expand(read_matrix(Path("matrix.yaml")))
    assert made.rejected == ()
    sizes = [cell.config.layout.world_size for cell in made.cells]
    assert max(sizes) == (64 if cores == 64 else 8 if cores < 16 else 16)


def test_without_a_checkout_a_release_is_tested_by_the_harnesses_loop() -> None:
    text = matrix_of_run("train.sh", Machine(cores=2, gpus=0), Path("matrix.yaml"))
    assert "trainer: harness" in text
    assert "stack: [core-" in text


def test_init_writes_it_and_the_plan_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "here", "--from", "train.sh"]) == 0
    assert main(["plan", "here/matrix.yaml"]) == 0
    assert "tp2-pp2-cp2" in capsys.readouterr().out


def test_a_dry_run_from_the_command_writes_the_matrix_once(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["run", "--from", "train.sh", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("wrote train.matrix.yaml") == 1


def test_a_matrix_that_was_edited_is_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.matrix.yaml").write_text("name: mine\n")
    assert main(["run", "--from", "train.sh", "--dry-run"]) == 2
    assert "exists already and says something else" in capsys.readouterr().err
    assert Path("train.matrix.yaml").read_text() == "name: mine\n"


@pytest.mark.parametrize("words", ["run", "run train.sh --from train.sh"])
def test_run_needs_a_matrix_or_a_run(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == 2
    assert "needs a matrix, or a training run with --from" in capsys.readouterr().err


def test_a_text_without_a_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.sh").write_text("make train\n")
    assert main(["init", "here", "--from", "train.sh"]) == 2
    assert "has no training command" in capsys.readouterr().err
    assert not Path("here").exists()


def test_a_script_is_run_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    script = f"#!/bin/bash\ntouch was_run\nTP=$(echo 2)\n{SFT_8B.replace('parallel-size 4', 'parallel-size $TP', 1)}"
    Path("train.sh").write_text(script)
    assert main(["init", "here", "--from", "train.sh"]) == 2
    assert "--execute" in capsys.readouterr().err
    assert not Path("was_run").exists()
    assert main(["init", "here", "--from", "train.sh", "--execute"]) == 0
    assert "{tp: 2, pp: 4, cp: 2" in Path("here/matrix.yaml").read_text()
    assert Path("was_run").exists()


def test_a_secret_in_the_command_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3tvalue0123")
    Path("train.sh").write_text(SFT_8B.replace("--wandb-project p", "--wandb-api-key s3cr3tvalue0123"))
    assert "s3cr3tvalue0123" not in matrix_of_run("train.sh", CHECKOUT, Path("matrix.yaml"))
