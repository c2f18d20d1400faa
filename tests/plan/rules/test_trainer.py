"""Rules of upstream's own trainers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.core.cell.canary_legs import legs_of
from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig
from harness.plan.rules.table import rejections
from tests.plan.helpers import expand_axes, names

SAME = DocumentsConfig(mode="file", lengths=(16, 8, 24, 4))


def cell(**more: Any) -> CellConfig:
    kept: dict[str, Any] = {"data_path": "sft", "documents": SAME, "train": TrainConfig(global_batch=4)} | more
    return CellConfig(layout=Layout(), trainer="megatron", **kept)


def test_a_trainer_reads_the_data_of_its_own_paths() -> None:
    assert rejections(cell()) == ()
    (found,) = rejections(cell(data_path="reference"))
    assert found.rule == "trainer.data-path"
    assert found.reason == "trainer is megatron, which reads the data of packing sft, and packing is reference"


def test_every_step_must_have_the_same_number_of_rows() -> None:
    uneven = DocumentsConfig(mode="file", lengths=(16, 8, 24, 4, 60, 60, 60, 60))
    (found,) = rejections(cell(documents=uneven))
    assert found.rule == "trainer.rows"
    assert found.reason.startswith("step 0 has 1 rows and step 1 has 4; --global-batch-size")
    assert rejections(replace(cell(documents=uneven), trainer="harness")) == ()


def test_model_parts_without_flags_are_rejected() -> None:
    (found,) = rejections(cell(model=ModelConfig(rope_fusion=True)))
    assert (found.rule, found.reason) == (
        "trainer.model",
        "trainer megatron gets the flags of a dense model, and model.rope_fusion is set",
    )


def test_the_control_is_trained_by_the_harness() -> None:
    made = expand_axes({"packing": "sft", "trainer": ["harness", "megatron"], "tp": [1, 2]})
    assert len(names(made)) == 4
    (control,) = [cell for cell in made.cells if cell.role == "control"]
    assert control.config.own_trainer


def test_upstreams_trainer_runs_no_canary_leg() -> None:
    config = replace(cell(), canaries=("isolation", "order"))
    assert legs_of(replace(config, trainer="harness")) and not legs_of(config)
