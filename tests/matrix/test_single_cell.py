"""A cell written as a matrix file loads to the same cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.identity import cell_id
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import TimingConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.core.stack import Checkout, ReadyStack, Stack, digest
from harness.core.tolerances import Override, ToleranceOverrides
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.inputs.yaml_file import dump
from harness.matrix.expansion.expand import expand
from harness.matrix.load import one_cell, pinned
from harness.triage.shrink.search import normalized
from tests.matrix.helpers import matrix_of

PLAIN = CellConfig(layout=Layout(), data_path="reference", documents=DocumentsConfig(mode="file", lengths=(3, 70)))
TWO = TrainConfig(global_batch=2)
STACK = Stack(
    name="two",
    packages=("megatron-core==0.17.1", "numpy"),
    checkouts=(Checkout(package="megatron-lm", repository="repo", ref="main"),),
    env={"A": "1"},
)
CELLS = {
    "plain": replace(PLAIN, train=TWO),
    "layout": replace(PLAIN, layout=Layout(tp=2, pp=2, cp=2, dp=2, vpp=2), model=ModelConfig(layers=8)),
    "sequence parallel": replace(PLAIN, layout=Layout(tp=2, sp=True), train=TWO),
    "experts": replace(
        PLAIN,
        layout=Layout(dp=2, ep=2),
        model=ModelConfig(moe=MoeConfig(aux_loss="aux_loss"), mla=MlaConfig(q_lora_rank=None), mtp=MtpConfig()),
    ),
    "options": replace(PLAIN, options=PackingOptions(pad_seq_to_mult=8, calculate_per_token_loss=False)),
    "dtype": replace(PLAIN, dtype="bf16", attention="reference", micro_batch_size=2, canaries=("order",)),
    "mix": replace(PLAIN, data_path="sft", documents=DocumentsConfig(mode="adversarial"), layout=Layout(cp=2)),
    "distribution": replace(
        PLAIN, documents=DocumentsConfig(mode="distribution", min_seq_len=2, max_seq_len=40, mean_seq_len=9)
    ),
    "arguments": replace(
        PLAIN,
        data_path="sft",
        trainer="megatron",
        train=TWO,
        args=Arguments(
            merged({"clip_grad": ("0.5",), "overlap_grad_reduce": (), "recompute_modules": ("core_attn", "mlp")}),
            profile="nightly",
            label="nightly",
        ),
    ),
    "timed": replace(PLAIN, timing=TimingConfig(documents=(4, 16), unpacked=True, rounds=9)),
    "timed on a GPU": replace(
        PLAIN,
        timing=TimingConfig(documents=(4, 1024), tokens=8192, full_rows=True, warmup=5),
        model=ModelConfig(rope_fusion=True),
        fingerprints=False,
    ),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_comes_back_from_its_file(name: str) -> None:
    config = normalized(CELLS[name])
    assert config is not None
    bounds = ToleranceOverrides(numerics={"step_loss": Override(value=0.5, unit="absolute")})
    matrix = matrix_of(one_cell(config, name="smallest", tolerances=bounds))
    (cell,) = [cell for cell in expand(matrix).cells if cell.role == "cell"]
    assert cell.id == cell_id(config)
    assert (cell.config.canaries, cell.config.fingerprints) == (config.canaries, config.fingerprints)
    assert matrix.tolerances.numerics == bounds.numerics
    assert matrix.timing == config.timing


def test_its_stack_comes_with_it() -> None:
    config = replace(PLAIN, stack="two", made_of=digest(STACK), train=TWO)
    matrix = matrix_of(one_cell(config, name="smallest", stack=STACK))
    assert matrix.stacks == {"two": STACK}
    assert [cell.id for cell in expand(matrix).cells if cell.role == "cell"] == [cell_id(config)]


def test_a_checkout_is_pinned_to_the_commit_that_its_ref_resolved_to() -> None:
    ready = ReadyStack(requested=STACK, commits={"megatron-lm": "c" * 40})
    assert pinned(ready).checkouts[0].ref == "c" * 40


def test_a_working_tree_is_not_pinned() -> None:
    tree = replace(STACK, checkouts=(replace(STACK.checkouts[0], ref=""),))
    ready = ReadyStack(requested=tree, commits={"megatron-lm": "c" * 40 + " with changes"})
    assert pinned(ready).checkouts == tree.checkouts
    config = replace(PLAIN, stack="two", train=TWO)
    assert matrix_of(one_cell(config, name="smallest", stack=tree)).stacks == {"two": tree}


def test_the_file_is_yaml_in_the_order_of_the_matrix_page() -> None:
    text = dump(one_cell(replace(PLAIN, train=TWO), name="smallest"))
    sections = [line.partition(":")[0] for line in text.splitlines() if not line.startswith((" ", "-"))]
    assert sections == ["name", "model", "train", "documents", "matrix", "launch", "checks"]
