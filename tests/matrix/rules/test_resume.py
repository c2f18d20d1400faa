from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig
from harness.features.resume.rules import RESUME_RULES
from harness.matrix.rules.table import rejections

DOCUMENTS = DocumentsConfig(mode="file", lengths=(16, 8, 24, 4))
CELL = CellConfig(
    layout=Layout(tp=2, pp=2, sp=True),
    data_path="sft",
    trainer="megatron",
    documents=DOCUMENTS,
    train=TrainConfig(global_batch=4),
)


def broken(resume: str, **more: Any) -> dict[str, str]:
    """Rule -> reason."""
    return {found.rule: found.reason for found in rejections(replace(CELL, resume=resume, **more))}


@pytest.mark.parametrize("resume", ["", "same", "tp1", "tp1-pp4", "tp4-pp1"])
def test_layouts_of_as_many_ranks_are_allowed(resume: str) -> None:
    assert broken(resume) == {}


def test_a_trainer_that_saves_no_checkpoint_is_rejected() -> None:
    assert broken("same", trainer="harness") == {
        "resume.trainer": "resume is same, and trainer harness saves no checkpoint; use trainer megatron or bridge"
    }
    assert broken("", trainer="harness") == {}


@pytest.mark.parametrize(("steps", "step", "allowed"), [(3, 1, True), (3, 2, True), (3, 3, False), (1, 1, False)])
def test_a_step_must_be_left(steps: int, step: int, allowed: bool) -> None:
    found = broken("same", train=TrainConfig(global_batch=4, steps=steps, save_step=step))
    reason = f"train.save_step is {step} of {steps} steps, so no step is left to resume"
    assert found == ({} if allowed else {"resume.step": reason})
    assert broken("", train=TrainConfig(global_batch=4, steps=steps, save_step=step)) == {}


def test_evaluations_continue_after_a_resume() -> None:
    assert broken("same", train=TrainConfig(global_batch=4, eval_interval=1)) == {}


def test_the_ranks_must_fit_the_other_layout() -> None:
    assert broken("tp3-pp1") == {
        "resume.ranks": "resume is tp3-pp1: 4 ranks are not divisible by tp x pp x cp = 3",
    }


def test_the_other_layout_must_be_allowed_itself() -> None:
    assert broken("vpp3") == {
        "resume.layout": "resume is vpp3: model.layers 4 is not divisible by pp 2 x vpp 3 = 6: 4 = 0 * 6 + 4"
    }


@pytest.mark.parametrize("sharded", ["on", "overlap"])
def test_shards_of_the_optimizer_fit_other_replicas_and_with_an_argument_other_stages(sharded: str) -> None:
    assert broken("tp1", distributed_optimizer=sharded) == {
        "resume.shards": "resume is tp1, from tp 2 and pp 2 to tp 1 and pp 2, and distributed_optimizer is "
        f"{sharded}: set args dist_ckpt_optim_fully_reshardable"
    }
    whole = Arguments(merged({"dist_ckpt_optim_fully_reshardable": ()}))
    assert broken("tp1", distributed_optimizer=sharded, args=whole) == {}
    replicas = {"layout": Layout(dp=4), "distributed_optimizer": sharded}
    assert broken("cp2", **replicas) == broken("same", distributed_optimizer=sharded) == {}
    assert broken("cp2-tp2", **replicas).keys() == {"resume.shards"}


def test_the_shards_of_megatron_bridge_have_a_field() -> None:
    cell = {"trainer": "bridge", "data_path": "bridge_long", "distributed_optimizer": "on"}
    assert broken("tp1", **cell)["resume.shards"].endswith("set args checkpoint.dist_ckpt_optim_fully_reshardable")
    for value, left in (("true", set()), ("false", {"resume.shards"})):
        args = Arguments(merged({"checkpoint.dist_ckpt_optim_fully_reshardable": (value,)}))
        assert broken("tp1", **cell, args=args).keys() == left


def test_rows_must_hold_the_same_documents_in_both_layouts() -> None:
    """Three documents, each with the slot of its last token, fill a row of 64, but not if padded to a multiple of 4."""
    full = DocumentsConfig(mode="file", lengths=(20, 20, 21, 3))
    assert broken("tp1", documents=full) == {}
    assert broken("cp2-pp1", documents=full) == {
        "resume.rows": "resume is cp2-pp1, and there the rows of step 1 do not hold the same documents, since these "
        "are padded to a multiple of 4, not 1; use documents that fill the same rows either way"
    }


def test_the_step_whose_rows_differ_is_named() -> None:
    later = DocumentsConfig(mode="file", lengths=(20, 20, 21, 3, 12, 8, 16, 4))  # steps 0 and 2, and step 1
    assert "the rows of step 2 do not" in broken("cp2-pp1", documents=later)["resume.rows"]


def test_rows_of_evaluations_must_hold_the_same_documents_too() -> None:
    """Step 2, in which rows differ, belongs to the evaluation of a run of two steps."""
    later = DocumentsConfig(mode="file", lengths=(12, 8, 16, 4, 12, 8, 16, 4, 20, 20, 21, 3))
    train = TrainConfig(global_batch=4, steps=2, eval_interval=2)
    reason = broken("cp2-pp1", documents=later, train=train)["resume.rows"]
    assert "the rows of the evaluation after step 2 do not" in reason
    assert broken("cp2-pp1", documents=later, train=replace(train, eval_interval=0)) == {}


def test_rows_of_a_layout_that_is_not_allowed_are_not_compared() -> None:
    full = DocumentsConfig(mode="file", lengths=(20, 20, 21, 3))
    assert broken("cp2-pp1-vpp3", documents=full).keys() == {"resume.layout"}


@pytest.mark.parametrize("predicate", [rule.predicate for rule in RESUME_RULES])
def test_no_rule_forbids_a_cell_that_does_not_resume(predicate: Callable[[CellConfig], str | None]) -> None:
    assert predicate(replace(CELL, trainer="harness")) is None
