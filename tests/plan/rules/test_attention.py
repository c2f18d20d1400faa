"""Rules of attention kernels, dtypes and releases that stacks pin."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.core.stack import Stack
from harness.plan.rules.attention import te_version_rule
from harness.plan.rules.table import rejections
from tests.plan.helpers import expand_axes, names


def cell(**more: Any) -> CellConfig:
    documents = DocumentsConfig(mode="file", lengths=(5,))
    return CellConfig(layout=Layout(), data_path="reference", documents=documents, **more)


PADDED = PackingOptions(pad_seq_to_mult=8)


def test_limits_of_kernels_are_rules_with_their_source() -> None:
    [found] = rejections(cell(attention="varlen"))
    assert (found.rule, found.source) == (
        "attention.kernel-dtype",
        "torch varlen.py: float16 or bfloat16; Transformer Engine get_attention_backend: FP16/BF16",
    )
    assert rejections(cell(attention="varlen", dtype="bf16")) == ()


def test_a_matrix_over_kernels_runs_what_can_run_and_rejects_the_rest() -> None:
    made = expand_axes({"packing": "reference", "attention": ["te", "varlen", "reference"], "dtype": ["fp32", "bf16"]})
    assert [cell.rejections[0].rule for cell in made.rejected] == ["attention.kernel-dtype"]
    assert "varlen" in made.rejected[0].id
    assert len(names(made)) == 5


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (cell(dtype="fp8", device="cpu"), "needs a GPU of compute capability 8.9 or more, and device is cpu"),
        (cell(dtype="fp8"), "needs Transformer Engine, and attention is auto"),
        (
            cell(dtype="fp8", attention="te", options=PADDED),
            "a multiple of 16 x cp 1 = 16, and they are padded to a multiple of 8",
        ),
        (
            cell(dtype="fp8", attention="te", options=PackingOptions(pad_seq_to_mult=16)),
            "which this version of the probe does not set",
        ),
    ],
)
def test_fp8_is_rejected_for_the_first_unmet_requirement(config: CellConfig, expected: str) -> None:
    assert expected in next(item.reason for item in rejections(config) if item.rule == "dtype.fp8")


@pytest.mark.parametrize(
    ("packages", "no_deps", "refused"),
    [
        (("transformer-engine==2.16.0", "megatron-core==0.18.2"), (), True),
        (("transformer_engine[pytorch]==2.12", "megatron-core==0.18.2"), (), True),
        (("torch==2.9.0",), ("transformer-engine-torch==2.16.0",), True),
        (("transformer-engine-cu12 == 2.16",), (), True),
        (
            ("transformer-engine==2.16.0", "megatron-core==0.19.2"),
            (),
            False,
        ),  # data path reference sets pad_between_seqs
        (("transformer-engine==2.17.0", "megatron-core==0.18.2"), (), False),
        (("transformer-engine",), (), False),  # only the node knows the release
    ],
)
def test_a_stack_that_pins_a_release_that_ignores_padding_is_rejected(
    packages: tuple[str, ...], no_deps: tuple[str, ...], refused: bool
) -> None:
    rule = te_version_rule({"pinned": Stack(name="pinned", packages=packages, no_deps=no_deps)})
    padded = cell(attention="te", dtype="bf16", stack="pinned", options=PADDED)
    assert bool(rejections(padded, [rule])) == refused
    assert not rejections(cell(attention="te", dtype="bf16", stack="pinned"), [rule])
    assert not rejections(cell(attention="varlen", dtype="bf16", stack="pinned", options=PADDED), [rule])
    assert not rejections(cell(attention="te", dtype="bf16", options=PADDED), [rule])


@pytest.mark.parametrize("stack", ["default", "another"])
def test_a_stack_without_known_packages_is_left_to_the_node(stack: str) -> None:
    rule = te_version_rule({"pinned": Stack(name="pinned", packages=("transformer-engine==2.9",))})
    requested = {"attention": "te", "dtype": "bf16", "options": PADDED}
    assert not rejections(cell(stack=stack, **requested), [rule])
    assert rejections(cell(stack="pinned", **requested), [rule])


@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_limits_of_kernels_hold_for_no_other_attention(attention: str) -> None:
    assert rejections(cell(attention=attention, device="cpu")) == ()
    assert [found.rule for found in rejections(cell(attention="te", device="cpu"))] == ["attention.kernel-device"]
