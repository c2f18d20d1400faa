"""Cells without a standalone reproducer, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.outcomes import Finding, Lane
from harness.core.packing.documents import DocumentsConfig
from harness.triage.shrink.standalone import Standalone, standalone

SFT = CellConfig(
    layout=Layout(tp=2, cp=2, dp=2),
    data_path="sft",
    train=TrainConfig(steps=1, global_batch=4, seq_length=16),
    documents=DocumentsConfig(mode="file", lengths=(5, 4)),
)
FOUND = Finding(lane=Lane.METADATA, check="params_agree_plan", message="none", fault_class="A")


@pytest.mark.parametrize(
    ("cell", "check", "said"),
    [
        (replace(SFT, fault="middle-stage-tp-ranks-with-garbage"), FOUND.check, "injected the fault"),
        (replace(SFT, trainer="megatron"), FOUND.check, "training loop of megatron"),
        (replace(SFT, layout=Layout(tp=2, pp=2, vpp=2)), FOUND.check, "no interleaved stages"),
        (replace(SFT, layout=Layout(tp=2, pp=8)), FOUND.check, "needs 16 ranks, and scripts have at most 8"),
        (SFT, "grad_norm", "only of the harness's own packing"),
        (replace(SFT, data_path="scheduler"), FOUND.check, "the data path scheduler"),
    ],
)
def test_a_cell_without_a_script_says_why(cell: CellConfig, check: str, said: str) -> None:
    found = standalone(cell, replace(FOUND, check=check), ())
    assert isinstance(found, str)
    assert said in found


def test_rows_are_those_of_the_plan() -> None:
    found = standalone(SFT, FOUND, ())
    assert isinstance(found, Standalone)
    assert (found.template, found.ranks) == ("sft_wheel", 8)
    offsets = [params.cu_seqlens_q for micro in SFT.micro_batches(0)[1] if (params := micro.params())]
    assert [tuple(cu_seqlens) for cu_seqlens, _ in found.values["expected"][1]] == offsets
    assert standalone(SFT, FOUND, ("megatron-lm",)) == replace(
        found, template="sft_checkout", needs="Megatron-LM on PYTHONPATH"
    )
