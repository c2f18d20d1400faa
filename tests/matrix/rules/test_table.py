"""Properties of all rules, for any cell."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.core.cell.axis_values import ATTENTIONS, DEVICES, GROUPS, RECOMPUTE
from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import ALGORITHMS, PackingOptions
from harness.features.attention.config import MLA_ROPES, SOFTMAXES, MlaConfig
from harness.features.experts.config import AUX_LOSSES, DISPATCHERS, MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.matrix.cluster import ClusterProfile
from harness.matrix.rules.runtime import container_rule, nodes_rule
from harness.matrix.rules.table import RULES, rejections, world_size_rule
from harness.upstreams.table import DATA_PATHS

SMALL = st.integers(1, 5)
LAYOUTS = st.builds(Layout, tp=SMALL, pp=SMALL, cp=SMALL, dp=SMALL, ep=SMALL, vpp=st.integers(1, 2), sp=st.booleans())
MOE = st.builds(
    MoeConfig,
    experts=SMALL,
    aux_loss=st.sampled_from(AUX_LOSSES),
    dispatcher=st.sampled_from(DISPATCHERS),
    padding_mask=st.booleans(),
)
MODELS = st.builds(
    ModelConfig,
    layers=SMALL,
    heads=SMALL,
    kv_heads=SMALL,
    hidden=st.sampled_from([8, 60, 64, 640]),
    rope_fusion=st.booleans(),
    softmax=st.sampled_from(SOFTMAXES),
    gathered_logits=st.booleans(),
    moe=st.none() | MOE,
    mtp=st.none() | st.just(MtpConfig()),
    mla=st.none() | st.builds(MlaConfig, q_lora_rank=st.none() | SMALL, rope=st.sampled_from(MLA_ROPES)),
)
TRAINS = st.builds(
    TrainConfig,
    steps=st.integers(1, 2),
    global_batch=st.integers(1, 6),
    seq_length=st.sampled_from([6, 16, 30]),
    label_smoothing=st.sampled_from([0.0, 0.1]),
)
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("pad_seq_to_mult", "pad_row_to_mult"), st.none() | SMALL),
    "max_tokens_per_microbatch": st.none() | st.sampled_from([4, 16, 60]),
    "packing_algorithm": st.sampled_from(ALGORITHMS),
}
OPTIONS = st.builds(
    PackingOptions,
    **{item.name: DRAWN.get(item.name, st.booleans()) for item in dataclasses.fields(PackingOptions)},
)
CONFIGS = st.builds(
    CellConfig,
    layout=LAYOUTS,
    data_path=st.sampled_from(list(DATA_PATHS)),
    micro_batch_size=st.integers(1, 3),
    dtype=st.sampled_from(["fp32", "bf16"]),
    attention=st.sampled_from(ATTENTIONS),
    device=st.sampled_from(DEVICES),
    recompute=st.sampled_from(RECOMPUTE),
    groups=st.sampled_from(GROUPS),
    lift=st.sampled_from(["", *[rule.id for rule in RULES]]),
    model=MODELS,
    train=TRAINS,
    documents=st.builds(
        DocumentsConfig, mode=st.just("file"), lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6).map(tuple)
    ),
    options=OPTIONS,
)


@settings(max_examples=150)
@given(config=CONFIGS)
def test_a_rule_returns_a_reason_or_none_and_never_raises(config: CellConfig) -> None:
    for found in rejections(config, (*RULES, world_size_rule(8))):
        assert found.reason


@given(layout=LAYOUTS, limit=st.integers(1, 40))
def test_more_ranks_than_the_limit_are_rejected_and_exactly_the_limit_is_not(layout: Layout, limit: int) -> None:
    config = CellConfig(layout=layout, data_path="sft")
    ranks = layout.tp * layout.pp * layout.cp * layout.dp
    found = rejections(config, (world_size_rule(limit),))
    assert bool(found) == (ranks > limit)
    assert not rejections(config, (world_size_rule(ranks),))
    assert not found or f"= {ranks} ranks, more than launch.max_ranks = {limit}" in found[0].reason


@given(config=CONFIGS)
def test_a_lifted_rule_rejects_nothing_and_the_others_still_do(config: CellConfig) -> None:
    strict = {item.rule for item in rejections(dataclasses.replace(config, lift=""))}
    assert {item.rule for item in rejections(config)} == strict - {config.lift}


def test_rules_that_depend_on_a_run_have_ids_and_sources() -> None:
    made = (world_size_rule(8), nodes_rule(ClusterProfile(name="c")), container_rule({}))
    assert [(rule.id, rule.source) for rule in made] == [
        ("layout.world-size", "Megatron-LM: world size = TP * PP * CP * DP"),
        ("cluster.nodes", "harness: one number of ranks per node (torch elastic nproc_per_node)"),
        ("stack.container", "harness: containers are started through Slurm (pyxis)"),
    ]


def test_the_reason_for_too_many_ranks_shows_the_sizes() -> None:
    config = CellConfig(layout=Layout(tp=2, pp=3, cp=4, dp=5), data_path="sft")
    (found,) = rejections(config, (world_size_rule(119),))
    assert found.reason == "tp 2 x pp 3 x cp 4 x dp 5 = 120 ranks, more than launch.max_ranks = 119"


def test_a_cell_takes_one_node_unless_the_matrix_asks_for_more() -> None:
    cluster = ClusterProfile(name="lab", kind="slurm", nodes=4, ranks_per_node=8)
    config = CellConfig(layout=Layout(pp=3), data_path="sft")
    assert rejections(config, (nodes_rule(cluster),)) == ()
    assert len(rejections(config, (nodes_rule(cluster, 2),))) == 1


def test_a_rejection_has_the_source_of_its_rule() -> None:
    found = rejections(CellConfig(layout=Layout(tp=3, pp=3), data_path="sft"))
    sources = {rule.id: rule.source for rule in RULES}
    assert len(found) > 1
    assert [item.source for item in found] == [sources[item.rule] for item in found]
