"""Rules of layouts against upstream's own validation, where both speak of the same sizes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.transformer.transformer_config import TransformerConfig

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.cell.layout import Layout
from harness.features.experts.config import MoeConfig
from harness.matrix.rules.table import rejections

# What TransformerConfig says too.
SHARED = {"layout.heads-by-tp", "layout.sp-needs-tp", "layout.ep-needs-experts"}
HEADS = st.sampled_from([1, 2, 3, 4, 6])


def refused_by_upstream(layout: Layout, model: ModelConfig) -> str:
    """Upstream's message; empty if it takes the sizes."""
    experts: dict[str, Any] = {"num_moe_experts": model.moe.experts, "moe_ffn_hidden_size": 64} if model.moe else {}
    try:
        TransformerConfig(
            num_layers=model.layers,
            hidden_size=model.hidden,
            num_attention_heads=model.heads,
            num_query_groups=model.kv_heads,
            tensor_model_parallel_size=layout.tp,
            pipeline_model_parallel_size=layout.pp,
            sequence_parallel=layout.sp,
            expert_model_parallel_size=layout.ep,
            pipeline_dtype=torch.float32,
            add_bias_linear=False,
            **experts,
        )
    except ValueError as error:
        return str(error)
    return ""


@settings(max_examples=150, deadline=None)
@given(
    layout=st.builds(Layout, tp=HEADS, pp=st.integers(1, 3), dp=st.just(2), ep=st.integers(1, 2), sp=st.booleans()),
    heads=HEADS,
    kv_heads=HEADS,
    moe=st.none() | st.just(MoeConfig(experts=2)),
)
def test_rules_and_upstream_refuse_the_same_layouts(
    layout: Layout, heads: int, kv_heads: int, moe: MoeConfig | None
) -> None:
    """kv_heads that tp does not divide are refused by both, but upstream copies them where they divide tp."""
    model = ModelConfig(layers=6, hidden=24 * heads, heads=heads, kv_heads=kv_heads, moe=moe)
    broken = {item.rule for item in rejections(CellConfig(layout=layout, data_path="unpacked", model=model))}
    copied = layout.tp % kv_heads == 0
    expected = broken & SHARED or ("layout.kv-heads-by-tp" in broken and not copied)
    assert bool(refused_by_upstream(layout, model)) == bool(expected)
