"""Rules of attention kernels, dtypes and releases that stacks pin."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig, adversarial_mix
from harness.core.packing.options import PackingOptions
from harness.core.stack import Stack
from harness.matrix.cluster import ClusterProfile
from harness.matrix.rules.runtime import container_rule, nodes_rule, te_version_rule
from harness.matrix.rules.table import rejections
from tests.matrix.helpers import expand_axes, names


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


def found(layout: Layout, **more: Any) -> dict[str, str]:
    kept: dict[str, Any] = {"data_path": "reference", "documents": adversarial_mix(64, 1)} | more
    return {item.rule: item.reason for item in rejections(CellConfig(layout=layout, **kept))}


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (Layout(tp=2), None),
        (Layout(), "and tp is 1; use recompute: full"),
        (Layout(tp=2, sp=True), "over tp 2, and with sp it is split already"),
    ],
)
def test_saved_inputs_are_split_only_where_every_rank_has_the_whole(layout: Layout, reason: str | None) -> None:
    reasons = found(layout, recompute="full-split")
    assert (reason is None and not reasons) or str(reason) in reasons["recompute.split"]


@pytest.mark.parametrize(
    ("layout", "rule", "reason"),
    [
        (Layout(tp=2, dp=2), "", ""),
        (Layout(tp=2), "groups.other-ranks", "and they are 2 and 1"),
        (Layout(dp=2), "groups.other-ranks", "and they are 1 and 2"),
        (Layout(tp=2, dp=2, pp=2), "groups.stages", "and pp is 2"),
        (Layout(tp=2, dp=2, pp=2, vpp=2), "groups.stages", "and pp is 2"),
    ],
)
def test_explicit_groups_differ_from_the_global_ones(layout: Layout, rule: str, reason: str) -> None:
    reasons = found(layout, groups="explicit")
    assert list(reasons) == [rule] * bool(rule)
    assert not rule or reason in reasons[rule]


def test_explicit_groups_are_passed_by_the_harness_alone() -> None:
    more = {"data_path": "sft", "trainer": "megatron"}
    assert "groups.trainer" in found(Layout(tp=2, dp=2), groups="explicit", **more)


STACKS = {
    "image": Stack(name="image", container="registry/image:25.10"),
    "wheel": Stack(name="wheel", packages=("six",)),
}


def container_reason(stack: str) -> str | None:
    config = CellConfig(layout=Layout(), data_path="sft", stack=stack)
    return next((found.reason for found in rejections(config, (container_rule(STACKS),))), None)


def test_a_container_is_rejected_on_this_machine() -> None:
    assert container_reason("image") == (
        "stack image is container registry/image:25.10, and cells run on this machine; use --cluster"
    )


def test_stacks_without_a_container_are_allowed() -> None:
    assert [container_reason("wheel"), container_reason("default")] == [None, None]


LAB = ClusterProfile(name="lab", kind="slurm", nodes=4, ranks_per_node=8)


def nodes_reason(nodes_per_cell: int = 1, **sizes: int) -> str | None:
    return nodes_rule(LAB, nodes_per_cell).predicate(CellConfig(layout=Layout(**sizes), data_path="sft"))


@pytest.mark.parametrize(
    ("nodes_per_cell", "sizes"), [(1, {}), (1, {"tp": 8}), (1, {"pp": 16}), (4, {"tp": 2, "pp": 4, "cp": 2}), (4, {})]
)
def test_ranks_that_split_evenly_over_nodes_are_allowed(nodes_per_cell: int, sizes: dict[str, int]) -> None:
    assert nodes_reason(nodes_per_cell, **sizes) is None


def test_ranks_that_do_not_split_evenly_are_rejected_with_the_arithmetic() -> None:
    assert nodes_reason(pp=9) == (
        "tp 1 x pp 9 x cp 1 x dp 1 = 9 ranks, ceil(9 / 8 ranks per node) = 2 nodes, "
        "over which the ranks do not split evenly: 9 = 4 * 2 + 1"
    )
    assert nodes_reason(4, pp=6) == (
        "tp 1 x pp 6 x cp 1 x dp 1 = 6 ranks, launch.nodes_per_cell = 4: 4 nodes, "
        "over which the ranks do not split evenly: 6 = 1 * 4 + 2"
    )


def test_more_nodes_than_a_job_may_take_are_rejected() -> None:
    assert nodes_reason(tp=8, pp=5) == (
        "tp 8 x pp 5 x cp 1 x dp 1 = 40 ranks, ceil(40 / 8 ranks per node) = 5 nodes, "
        "more than the 4 that a job of cluster lab may take"
    )
