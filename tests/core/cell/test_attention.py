"""Limits of attention kernels: each rejects a cell that violates it and accepts the nearest one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.features.attention.config import MlaConfig
from harness.features.attention.limits import KERNELS, first_padded, kind_of, limits, possible_kinds, te_auto_padding


def cell(attention: str, *, dtype: str = "bf16", lengths: tuple[int, ...] = (16,), **more: Any) -> CellConfig:
    layout = {name: more.pop(name) for name in ("tp", "cp") if name in more}
    return CellConfig(
        layout=Layout(**layout),
        data_path=more.pop("data_path", "reference"),
        attention=attention,
        dtype=dtype,
        documents=DocumentsConfig(mode="file", lengths=lengths),
        **more,
    )


def heads(hidden: int, number: int) -> ModelConfig:
    return ModelConfig(hidden=hidden, heads=number, kv_heads=number)


@pytest.mark.parametrize(
    ("limit", "wrong", "expected", "right"),
    [
        ("kernel-device", cell("te", device="cpu"), "device is cpu", cell("te", device="cuda")),
        ("kernel-dtype", cell("varlen", dtype="fp32"), "not fp32", cell("te", dtype="fp32")),
        ("kernel-dtype", cell("te-fused", dtype="fp32"), "16-bit dtypes", cell("te-fused")),
        (
            "kernel-head-size",
            cell("varlen", model=heads(60, 10)),
            "model.hidden 60 / model.heads 10 = 6 per head, not divisible by 8: 6 = 0 * 8 + 6",
            cell("varlen", model=heads(80, 10)),
        ),
        (
            "kernel-head-size",
            cell("te-flash", model=heads(528, 2)),
            "528 / model.heads 2 = 264 per head, more than 256",
            cell("te-flash", model=heads(512, 2)),
        ),
        ("kernel-head-size", cell("te-fused", model=heads(60, 10)), "6 per head", cell("te", model=heads(60, 10))),
        (
            "kernel-latent",
            cell("te", model=ModelConfig(mla=MlaConfig())),
            "queries of 8 + 4 = 12 and values of 8",
            cell("te"),
        ),
        ("kernel-cp", cell("varlen", cp=2), "cp 2: torch's varlen_attn sees only the 1/2", cell("te", cp=2)),
        ("kernel-cp", cell("te", cp=2, dtype="fp32"), "cp 2 with dtype fp32", cell("te", dtype="fp32")),
        (
            "kernel-cp",
            cell("te", cp=2, model=heads(60, 10)),
            "cp 2 with model.hidden 60 / model.heads 10 = 6 per head, not divisible by 8",
            cell("te", cp=2, model=heads(80, 10)),
        ),
        (
            "te-padding-unfused",
            cell("te", dtype="fp32", lengths=(15,), options=PackingOptions(pad_seq_to_mult=16)),
            "micro-batch 0 of step 0 holds 60 real tokens in 64 slots, and dtype fp32: Transformer Engine computes",
            cell("te", dtype="fp32", lengths=(16,), options=PackingOptions(pad_seq_to_mult=16)),
        ),
        (
            "te-padding-unfused",
            cell("te", lengths=(15,), options=PackingOptions(pad_seq_to_mult=16), model=heads(528, 2)),
            "528 / model.heads 2 = 264 per head, more than 256: Transformer Engine computes that unfused",
            cell("te", lengths=(15,), options=PackingOptions(pad_seq_to_mult=16), model=heads(512, 2)),
        ),
    ],
)
def test_a_cell_is_rejected_if_its_kernel_cannot_compute_it(
    limit: str, wrong: CellConfig, expected: str, right: CellConfig
) -> None:
    found = {item.id: reason for item, reason in limits(wrong)}
    assert expected in found[f"attention.{limit}"]
    assert f"attention.{limit}" not in {item.id for item, _ in limits(right)}


@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_the_reference_attention_and_auto_have_no_limits(attention: str) -> None:
    everything = cell(attention, dtype="fp32", device="cpu", cp=2, model=ModelConfig(mla=MlaConfig()))
    assert limits(everything) == []
    assert {kind for kind in KERNELS if not limits(replace(everything, attention=kind))} == set()


def test_padding_is_found_only_if_real_offsets_differ_from_those_of_slots() -> None:
    padded = cell("te", lengths=(5,), options=PackingOptions(pad_seq_to_mult=8))
    assert first_padded(padded) == "micro-batch 0 of step 0 holds 40 real tokens in 64 slots"
    for data_path in ("unpacked", "sft", "scheduler"):
        assert first_padded(replace(padded, data_path=data_path)) == ""
    assert first_padded(replace(padded, options=PackingOptions())) == ""


@pytest.mark.parametrize(
    ("version", "explicit", "refused"),
    [((2, 16, 0), False, True), ((2, 16), True, False), ((1, 13), False, True), ((2, 17), False, False)],
)
def test_an_engine_that_overlooks_padding_is_refused_unless_the_metadata_is_explicit(
    version: tuple[int, ...], explicit: bool, refused: bool
) -> None:
    padded = cell("te-fused", lengths=(5,), options=PackingOptions(pad_seq_to_mult=8))
    reason = te_auto_padding(version, padded, explicit)
    assert (reason is not None) == refused
    assert reason is None or f"Transformer Engine {'.'.join(map(str, version))} <= 2.16" in reason
    assert te_auto_padding(version, replace(padded, options=PackingOptions()), explicit) is None
    assert te_auto_padding(version, replace(padded, attention="varlen"), explicit) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("harness reference attention", "reference"),
        ("torch varlen_attn 2.15.0", "varlen"),
        ("Transformer Engine 2.20.2, te", "te"),
        ("Transformer Engine 2.20.2, te-fused", "te-fused"),
        ("Transformer Engine 2.20.2", None),
        ("Transformer Engine 2.20.2, reference", None),
        ("reference", None),
        ("", None),
    ],
)
def test_the_kind_of_a_recorded_attention(text: str, kind: str | None) -> None:
    assert kind_of(text) == kind


@pytest.mark.parametrize(
    ("config", "device", "kinds"),
    [
        (cell("te-flash"), "cuda", ("te-flash",)),
        (cell("reference"), "cuda", ("reference",)),
        (cell("auto"), "cuda", ("te", "varlen", "reference")),
        (cell("auto"), "cpu", ("reference",)),
        (cell("auto", dtype="fp32"), "cuda", ("reference",)),
        (cell("auto", cp=2), "cuda", ("te", "reference")),
        (cell("auto", model=ModelConfig(mla=MlaConfig())), "cuda", ("reference",)),
    ],
)
def test_the_kinds_that_a_cell_may_use(config: CellConfig, device: str, kinds: tuple[str, ...]) -> None:
    assert possible_kinds(config, device) == kinds
