"""Rules of layouts against upstream's own validation, where both speak of the same sizes."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from megatron.core import parallel_state
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.cell.layout import Layout
from harness.core.cell.stages import checked_stages
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.matrix.rules.table import rejections

# What TransformerConfig says too.
SHARED = {"layout.heads-by-tp", "layout.kv-heads-by-tp", "layout.sp-needs-tp", "layout.ep-needs-experts"}
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
    """The parts of rules that TransformerConfig does not check itself follow from upstream's layers."""
    model = ModelConfig(layers=6, hidden=24 * heads, heads=heads, kv_heads=kv_heads, moe=moe)
    broken = {item.rule for item in rejections(CellConfig(layout=layout, data_path="unpacked", model=model))}
    expected = broken & SHARED
    assert bool(refused_by_upstream(layout, model)) == bool(expected)


SPLITS = {"layout.layers-by-pp", "layout.stages"}
SIZE = st.none() | st.integers(1, 4)


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Layout, ModelConfig]:
    """A layout of several stages, and a model whose layers may fit it or not."""
    pp, vpp = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    sizes = [draw(st.integers(0, 3)) for _ in range(pp * vpp)]
    layers, depths = draw(st.just(max(sum(sizes), 1)) | st.integers(1, 12)), draw(st.integers(0, 2))
    chunks = ["t" * size for size in sizes]
    chunks[draw(st.integers(len(sizes) - 1 if sum(sizes[-1:]) else 0, len(sizes) - 1))] += "m" * depths
    stages = f"E{'|'.join(chunks)}L"
    layout = draw(
        st.builds(
            Layout,
            pp=st.just(pp),
            vpp=st.just(vpp),
            first_stage_layers=SIZE,
            last_stage_layers=SIZE,
            embedding_as_layer=st.booleans(),
            loss_as_layer=st.booleans(),
            stages=st.none(),
        )
        | st.builds(Layout, pp=st.just(pp), vpp=st.just(vpp), stages=st.just(stages))
    )
    return layout, ModelConfig(layers=layers, mtp=MtpConfig(layers=depths) if depths else None)


def built_by_upstream(layout: Layout, model: ModelConfig) -> list[range] | None:
    """The layers of every chunk, in the order in which a token passes them; None if upstream refuses the split.

    So it is with a stage of fewer than no layers, which it lets pass.
    """
    vpp = layout.vpp if layout.vpp > 1 else None
    try:
        config = TransformerConfig(
            num_layers=model.layers,
            hidden_size=64,
            num_attention_heads=4,
            pipeline_dtype=torch.float32,
            mtp_num_layers=model.mtp.layers if model.mtp else None,
            pipeline_model_parallel_size=layout.pp,
            virtual_pipeline_model_parallel_size=vpp,
            num_layers_in_first_pipeline_stage=layout.first_stage_layers,
            num_layers_in_last_pipeline_stage=layout.last_stage_layers,
            account_for_embedding_in_pipeline_split=layout.embedding_as_layer,
            account_for_loss_in_pipeline_split=layout.loss_as_layer,
            pipeline_model_parallel_layout=layout.stages,
        )
        parallel_state.set_virtual_pipeline_model_parallel_world_size(vpp)
        found = []
        for chunk, stage in itertools.product(range(layout.vpp), range(layout.pp)):
            parallel_state.set_pipeline_model_parallel_rank(stage)
            number = chunk if vpp else None
            first = get_transformer_layer_offset(config, number, stage) + 1
            found.append(range(first, first + get_num_layers_to_build(config, number, stage)))
        return found if all(layers.start <= layers.stop for layers in found) else None
    except (ValueError, AssertionError):
        return None
    finally:
        parallel_state.set_virtual_pipeline_model_parallel_world_size(None)
        parallel_state.set_pipeline_model_parallel_rank(None)


@settings(max_examples=400, deadline=None)
@given(pipeline=pipelines())
def test_layers_are_split_over_stages_as_upstream_splits_them(pipeline: tuple[Layout, ModelConfig]) -> None:
    layout, model = pipeline
    assume(layout.stages is None or _accepted(layout.stages))
    built = built_by_upstream(layout, model)
    problems = rejections(CellConfig(layout=layout, data_path="unpacked", model=model))
    broken = [item for item in problems if item.rule in SPLITS and "would not learn" not in item.reason]
    assert (built is None) == bool(broken)
    if built is not None:
        places = itertools.product(range(layout.vpp), range(layout.pp))
        assert built == [layout.layers(model.layers, stage, chunk) for chunk, stage in places]


def _accepted(stages: str) -> bool:
    try:
        return checked_stages(stages) == stages
    except ValueError:
        return False
