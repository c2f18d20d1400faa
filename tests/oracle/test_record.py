"""The record of the oracle: what it does not model, which cells share it, what the supervisor writes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import MoeConfig
from harness.core.cell.modelled import follows_choices
from harness.core.run.record_file import write_record
from harness.core.run.records import BuiltSeen, ChoiceSeen, OracleRecord, RankRecord, StepSeen
from harness.core.run.run_dir import AttemptDir, RunDir, text_of
from harness.core.serialization import from_jsonable, loads
from harness.core.vision import VisionConfig
from harness.node import supervisor
from harness.node.coordination.rendezvous import NodeShare
from harness.oracle.choices import Choices
from harness.oracle.record import key_of, not_modelled, record_of
from tests.oracle.test_choices import ROUTED
from tests.oracle.test_train import BUILT, SEEING, cell, seeing


def in_layout(config: CellConfig, **sizes: int) -> CellConfig:
    return replace(config, layout=Layout(**sizes))


def test_cells_share_a_key_if_stages_and_ranks_do_not_change_their_rows() -> None:
    config = cell("unpacked")
    assert key_of(config, BUILT) == key_of(in_layout(config, pp=2), BUILT) == key_of(in_layout(config, tp=2), BUILT)


@pytest.mark.parametrize(
    "other",
    [
        cell("reference"),
        cell("unpacked", dp=2),
        cell("unpacked", lr=1e-2),
        cell("unpacked", seed=7),
        cell("unpacked", label_smoothing=0.1),
        replace(cell("unpacked"), micro_batch_size=2),
    ],
)
def test_other_rows_or_arguments_have_another_key(other: CellConfig) -> None:
    assert key_of(other, BUILT) != key_of(cell("unpacked"), BUILT)


def test_another_model_has_another_key() -> None:
    deeper = [replace(one, values={**one.values, "num_layers": "3"}) if one.of == "model" else one for one in BUILT]
    assert key_of(cell(), deeper) != key_of(cell(), BUILT)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (
            {"dtype": "bf16", "model": replace(cell().model, moe=MoeConfig()), "saved_in": Layout(dp=2)},
            "resume after other micro-batches",
        ),
        (
            {"model": replace(cell().model, moe=MoeConfig(aux_loss="aux_loss")), "saved_in": Layout(dp=2)},
            "resume after other micro-batches",
        ),
        (
            {"model": replace(cell().model, moe=MoeConfig(capacity_factor=2)), "saved_in": Layout(tp=2)},
            "resume after other micro-batches",
        ),
        ({"trainer": "example"}, "trainer example"),
        ({"train": replace(cell().train, steps=10**9)}, "size: about "),
        ({"model": replace(cell().model, vision=VisionConfig(layers=1_024, hidden=2**14, ffn=2**16))}, "size: about "),
    ],
)
def test_what_is_not_modelled_is_said(changed: dict[str, Any], why: str) -> None:
    assert not_modelled(cell(), BUILT) == ""
    assert not_modelled(replace(cell(), **changed), BUILT).startswith(why)


def test_a_part_after_a_resume_is_modelled_if_it_has_the_micro_batches_of_the_one_before() -> None:
    balanced = replace(cell().model, moe=MoeConfig(aux_loss="aux_loss"))
    for dtype in ("fp32", "bf16"):
        for saved in (Layout(), Layout(tp=2), Layout(pp=2)):
            assert not_modelled(replace(cell(), dtype=dtype, model=balanced, saved_in=saved), BUILT) == ""


def test_other_images_have_another_key() -> None:
    keys = {key_of(seeing("unpacked", 1, images), SEEING) for images in (0, 1, 2)}
    assert len(keys) == 3


def test_routers_are_followed_only_where_the_oracle_computes_the_cell() -> None:
    routed = replace(cell(), model=replace(cell().model, moe=MoeConfig()))
    assert follows_choices(routed) and not follows_choices(cell())
    assert follows_choices(replace(cell(), model=replace(cell().model, moe=MoeConfig(capacity_factor=1.0))))
    for changed in ({"trainer": "example"}, {"train": replace(cell().train, steps=10**9)}):
        assert not follows_choices(replace(routed, **changed))


def test_a_field_that_is_not_modelled_is_named_with_its_value() -> None:
    odd = [replace(one, values={**one.values, "qk_l2_norm": "true"}) if one.of == "model" else one for one in BUILT]
    assert not_modelled(cell(), odd) == "qk_l2_norm true"


def written(run: Path, name: str, config: CellConfig) -> OracleRecord:
    """What the supervisor writes of a cell whose one rank has trained."""
    attempt = RunDir(run).attempt(name)
    seen = RankRecord(cell=name, rank=0, place=Layout().coordinates(0), ended="completed", built=BUILT)
    seen.steps = [StepSeen(step=0, micro_batches=1)]
    write_record(attempt.record(0), seen)
    share = NodeShare(node=0, nodes=1, world_size=1)
    supervisor._Part(AttemptDir(attempt.root), name, 1, config, share).write_oracle()
    return from_jsonable(OracleRecord, loads(text_of(attempt.oracle)), whole=True)


def test_two_cells_with_the_same_rows_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []

    def counted(name: str, *arguments: Any) -> RankRecord:
        computed.append(name)
        return record_of(name, *arguments)

    monkeypatch.setattr(supervisor, "record_of", counted)
    plain = cell("unpacked")
    first, second = written(tmp_path, "a", plain), written(tmp_path, "b", in_layout(plain, pp=2))
    assert computed == ["a"]
    assert first.record is not None and second.record is not None
    assert (second.cell, second.record) == ("b", replace(first.record, cell="b"))


@pytest.mark.parametrize(("saved_in", "steps"), [(Layout(), {0, 1}), (Layout(pp=2), {0, 1}), (Layout(dp=2), {1})])
def test_the_oracle_of_a_resumed_part_follows_the_choices_of_the_part_before_if_it_had_the_same_micro_batches(
    saved_in: Layout, steps: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Choices] = []

    def noted(name: str, config: CellConfig, built: list[BuiltSeen], choices: Choices) -> NoReturn:
        given.append(choices)
        raise KeyError(name)

    monkeypatch.setattr(supervisor, "record_of", noted)
    config = replace(cell(), model=replace(cell().model, moe=MoeConfig(experts=2, topk=1)))
    attempt, share = RunDir(tmp_path).attempt("a"), NodeShare(node=0, nodes=1, world_size=1)
    saved = supervisor._Part(AttemptDir(attempt.root), "a", 1, replace(config, resume="same"), share)
    resumed = replace(config, saved_in=saved_in)
    part = supervisor._Part(AttemptDir(attempt.root).resumed, "a", 1, resumed, share, saved)
    for one, step in ((saved, 0), (part, 1)):
        seen = RankRecord(cell="a", rank=0, place=Layout().coordinates(0), ended="completed", built=ROUTED)
        seen.steps = [StepSeen(step=step, micro_batches=1)]
        slots = one.config.micro_batches(step)[0][0].slots
        seen.choices = [ChoiceSeen(step=step, layer=1, micro_batch=0, experts=[[0]] * slots)]
        write_record(one.attempt.record(0), seen)
    part.write_oracle()
    assert {place[0] for place in given[0]} == steps


def test_an_exception_in_the_oracle_is_written_for_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> NoReturn:
        raise KeyError("decoder")

    monkeypatch.setattr(supervisor, "record_of", broken)
    found = written(tmp_path, "a", cell())
    assert (found.record, found.not_modelled) == (None, "")
    assert found.failed.rstrip().endswith("KeyError: 'decoder'")
