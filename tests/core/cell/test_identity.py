from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from harness.core.cell.arguments import Argument, Arguments
from harness.core.cell.axes import axes, dotted
from harness.core.cell.config import CANARIES, CellConfig, ModelConfig, TrainConfig
from harness.core.cell.identity import _text, cell_id, cell_name
from harness.core.cell.layout import Layout
from harness.core.cell.timing import TimingConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.core.run.run_dir import path_component
from harness.core.serialization import dumps, from_jsonable, loads
from harness.core.setting import Key, keys_of
from harness.core.stack import Checkout, Stack, digest
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig

CELL = CellConfig(layout=Layout(tp=2, pp=4, sp=True), data_path="sft")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "tp2-pp4-cp1-sft"),
        ({"layout": Layout(tp=2, dp=2, vpp=3, ep=2)}, "tp2-pp1-cp1-dp2-ep2-vpp3-nosp-sft"),
        ({"micro_batch_size": 2, "dtype": "bf16", "attention": "reference"}, "tp2-pp4-cp1-sft-mbs2-bf16-reference"),
        ({"attention": "te-fused", "device": "cuda"}, "tp2-pp4-cp1-sft-te-fused-cuda"),
        ({"options": PackingOptions(pad_seq_to_mult=8, pad_to_max_length=True)}, "tp2-pp4-cp1-sft-pad8-padmax"),
        (
            {"options": PackingOptions(pad_cu_seqlens=True, metadata=True, average_in_collective=True)},
            "tp2-pp4-cp1-sft-padcu-meta-avgcoll",
        ),
        ({"options": PackingOptions(calculate_per_token_loss=False)}, "tp2-pp4-cp1-sft-meanloss"),
        ({"options": PackingOptions(remove_microbatch_padding=False)}, "tp2-pp4-cp1-sft-nopack"),
        ({"variant": "seq_length128", "stack": "main", "fault": "leak"}, "tp2-pp4-cp1-sft-seq_length128-main-leak"),
    ],
)
def test_a_name_shows_the_axes_that_differ_from_their_defaults(change: dict[str, Any], name: str) -> None:
    config = replace(CELL, **change)
    assert cell_name(config) == name
    assert cell_id(config).rpartition("-")[0] == name
    assert path_component(cell_id(config)) == cell_id(config)


def test_an_id_is_stable() -> None:
    assert cell_id(CELL) == cell_id(replace(CELL))
    assert cell_id(CELL) == cell_id(from_jsonable(CellConfig, loads(dumps(CELL))))


# Left out of an id: deadline, canaries, records and a lifted rule change no number; the variant repeats what model and
# train say. The digest of a stack counts only with a stack: the test of stacks with the same name covers it. A part has
# its cell's id.
_NOT_HASHED = {"deadline_s", "canaries", "fingerprints", "operations", "lift", "variant", "made_of", "saved_in"}


@pytest.mark.parametrize("name", [item.name for item in fields(CellConfig) if item.name not in _NOT_HASHED])
def test_every_setting_that_can_change_a_number_changes_the_hash(name: str) -> None:
    changed: dict[str, Any] = {
        "layout": replace(CELL.layout, sp=False),
        "data_path": "reference",
        "dtype": "bf16",
        "attention": "reference",
        "device": "cuda",
        "stack": "main",
        "model": ModelConfig(rope_base=1),
        "train": TrainConfig(seed=5),
        "documents": DocumentsConfig(lengths=(1,)),
        "options": PackingOptions(metadata=True),
        "fault": "leak",
        "resume": "same",
        "args": Arguments((Argument(name="clip_grad", words=("1",)),)),
        "timing": TimingConfig(unpacked=True),
    }
    value = changed[name] if name in changed else other_value(keys_of(CellConfig)[name])
    assert cell_id(replace(CELL, **{name: value}))[-8:] != cell_id(CELL)[-8:]


def other_value(key: Key) -> Any:
    """Any value of an axis but its default."""
    if key.setting.choices:
        return next(value for value in key.setting.choices if value != key.default)
    return not key.default if isinstance(key.default, bool) else key.default + 1


def test_optional_parts_that_a_model_does_not_have_do_not_change_the_id() -> None:
    assert "moe" not in _text(ModelConfig())
    assert _text(ModelConfig()).endswith('"rope_base": 10000, "tied": false}')
    for more in (ModelConfig(moe=MoeConfig()), ModelConfig(mtp=MtpConfig()), ModelConfig(mla=MlaConfig())):
        assert cell_id(replace(CELL, model=more))[-8:] != cell_id(CELL)[-8:]


def test_settings_that_were_added_later_do_not_change_the_id_at_their_defaults() -> None:
    """A cell of an older version keeps its id, and with it its history."""
    plain = CellConfig(layout=Layout(tp=2, pp=2, sp=True), data_path="sft")
    assert cell_id(plain) == "tp2-pp2-cp1-sft-4c97527e"
    timed = replace(plain, timing=TimingConfig(documents=(4, 16), unpacked=True, rounds=9))
    assert cell_id(timed) == "tp2-pp2-cp1-sft-7c60ab4f"
    ids = {cell_id(timed)} | {
        cell_id(replace(timed, timing=replace(timed.timing, **one)))
        for one in ({"full_rows": True}, {"warmup": 4}, {"tokens": 8192})
    }
    assert len({*ids, cell_id(replace(timed, model=ModelConfig(rope_fusion=True)))}) == 5


def test_the_deadline_does_not_change_the_id() -> None:
    assert cell_id(replace(CELL, deadline_s=1.0)) == cell_id(CELL)
    assert cell_id(replace(CELL, canaries=CANARIES)) == cell_id(CELL)


@pytest.mark.parametrize(
    "change",
    [
        {"packages": ("megatron-core==0.18.2",)},
        {"no_deps": ("transformer-engine==2.20.2",)},
        {"python": "3.13"},
        {"interpreter": "/opt/other/bin/python"},
        {"container": "image:1"},
        {"checkouts": (Checkout(package="megatron-lm", repository="/lm", ref="main"),)},
        {"checkouts": (Checkout(package="megatron-lm", repository="/lm", ref="v1"),)},
        {"checkouts": (Checkout(package="megatron-lm", repository="/lm", ref="main", revert=("abc",)),)},
        {"env": {"NVTE_DEBUG": "1"}},
    ],
)
def test_stacks_with_the_same_name_and_different_code_give_different_ids(change: dict[str, Any]) -> None:
    plain = Stack(name="bad", packages=("megatron-core==0.17.1",))
    ids = {
        cell_id(CellConfig(layout=Layout(), data_path="unpacked", stack="bad", made_of=digest(stack)))
        for stack in (plain, replace(plain, **change))
    }
    assert len(ids) == 2
    assert digest(plain) == digest(replace(plain, name="good"))  # the id contains the name anyway


def test_no_key_of_a_section_is_named_like_an_axis() -> None:
    """A report reads the values of axes back from an id."""
    plain, of_sections = (
        {axis.setting.label.partition("{}")[0] for axis in found.values()} - {""} for found in (axes(), dotted())
    )
    assert of_sections and not plain & of_sections
