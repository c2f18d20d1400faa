from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.oracle.drawing import END, OTHER_PADDING, PADDING, content_tokens, draw, initial_weight
from harness.probe.weights import Shard, forget, initialize, named_parameters, parts_of
from tests.runtime.conftest import config


@pytest.mark.parametrize(("dim", "pieces"), [(0, 1), (1, 1), (0, 2)])
def test_the_shards_of_all_ranks_tile_the_full_tensor(dim: int, pieces: int) -> None:
    full = torch.arange(8 * 12.0).reshape(8, 12)
    shards = [Shard(full=(8, 12), dim=dim, pieces=pieces, index=rank, count=2).take(full) for rank in range(2)]
    assert sorted(torch.cat([shard.flatten() for shard in shards]).tolist()) == full.flatten().tolist()
    assert all(shard.numel() == full.numel() // 2 for shard in shards)


def test_a_gated_layer_gives_each_rank_its_part_of_both_halves() -> None:
    full = torch.arange(8.0)  # gate 0..3, up 4..7
    shard = Shard(full=(8,), dim=0, pieces=2, index=1, count=2)
    assert shard.take(full).tolist() == [2, 3, 6, 7]


def test_a_parameter_per_head_is_split_although_upstream_does_not_mark_it() -> None:
    chunk = torch.nn.ParameterDict({"softmax_offset": torch.nn.Parameter(torch.zeros(4)), "weight": torch.zeros(4)})
    holder = torch.nn.ModuleDict({"core_attention": chunk})
    sink, norm = named_parameters(holder, tp_rank=1, tp_size=2)
    assert (sink.name, sink.shard) == (
        "core_attention.softmax_offset",
        Shard(full=(8,), dim=0, pieces=1, index=1, count=2),
    )
    assert norm.shard.dim is None
    whole, _ = named_parameters(holder, tp_rank=0, tp_size=1)
    assert [part.index for part in parts_of(whole)] == [0, 1, 2, 3]


def test_a_layer_without_gates_is_one_piece_and_its_bias_is_split_like_its_weight() -> None:
    layer: Any = type("ColumnParallelLinear", (torch.nn.Linear,), {})(4, 6)
    layer.bias.tensor_model_parallel, layer.bias.partition_dim = True, 0
    chunk: Any = torch.nn.ModuleDict({"linear_fc1": layer})
    for gated, pieces in ((True, 2), (False, 1)):
        chunk.config = SimpleNamespace(gated_linear_unit=gated)
        weight, bias = named_parameters(chunk, tp_rank=1, tp_size=2)
        assert (weight.shard.pieces, bias.shard.pieces, bias.shard.full) == (pieces, pieces, (12,))


def test_biases_are_drawn_around_0_and_weights_of_norms_around_1() -> None:
    assert initial_weight("decoder.layers.0.mlp.linear_fc1.bias", (1000,), 1).mean().abs() < 0.01
    assert (initial_weight("decoder.layers.0.input_layernorm.weight", (1000,), 1).mean() - 1).abs() < 0.01


def test_a_replicated_tensor_is_whole_on_every_rank() -> None:
    full = torch.arange(4.0)
    assert Shard(full=(4,), dim=None, pieces=1, index=1, count=2).take(full) is full


@pytest.mark.parametrize(
    ("kind", "marked", "dim"),
    [("ColumnParallelLinear", False, 0), ("RowParallelLinear", False, 1), ("Linear", False, None), ("Linear", True, 1)],
)
def test_the_class_of_a_layer_tells_how_its_weight_is_split_where_upstream_does_not_mark_it(
    kind: str, marked: bool, dim: int | None
) -> None:
    layer = type(kind, (torch.nn.Linear,), {})(4, 6)
    if marked:
        layer.weight.tensor_model_parallel, layer.weight.partition_dim = True, 1
    chunk = torch.nn.ModuleDict({"proj": layer})
    found = {item.name: item.shard for item in named_parameters(chunk, tp_rank=1, tp_size=2)}
    assert found["proj.weight"].dim == dim
    assert found["proj.weight"].full == {0: (12, 4), 1: (6, 8), None: (6, 4)}[dim]
    assert found["proj.bias"].dim is None


def test_draws_depend_on_kind_name_shape_and_seed_alone() -> None:
    first = draw("weight", "decoder.layers.0.weight", (4, 3), 1)
    assert torch.equal(first, draw("weight", "decoder.layers.0.weight", (4, 3), 1))
    others = [("projection", "decoder.layers.0.weight", 1), ("weight", "decoder.layers.1.weight", 1)]
    for kind, name, seed in [*others, ("weight", "decoder.layers.0.weight", 2)]:
        assert not torch.equal(first, draw(kind, name, (4, 3), seed))


def test_contents_are_the_same_in_every_layout_and_differ_between_documents_and_steps() -> None:
    one, other = config(tp=1), config("sft", tp=2, pp=2)
    assert torch.equal(content_tokens(one, 0, 3, 20), content_tokens(other, 0, 3, 20))
    assert not torch.equal(content_tokens(one, 0, 3, 20), content_tokens(one, 0, 4, 20))
    assert not torch.equal(content_tokens(one, 0, 3, 20), content_tokens(one, 1, 3, 20))
    ids = content_tokens(one, 0, 3, 2000)
    assert set(ids[:-1].tolist()) == set(range(3, one.model.vocab))
    assert ids[-1] == END
    assert {PADDING, END, OTHER_PADDING} == {0, 1, 2}
    assert not torch.equal(ids, content_tokens(one, 0, 3, 2000, changed=True))


def adapted(kind: str) -> Any:
    """A layer `linear_fc1` in upstream's wrapper, with an adapter of two factors and a magnitude."""
    layer, factor = (type(kind, (torch.nn.Linear,), {}) for _ in range(2))
    adapter: Any = torch.nn.ModuleDict({"linear_in": factor(4, 2, bias=False), "linear_out": factor(2, 8, bias=False)})
    adapter.weight_magnitude = torch.nn.Parameter(torch.zeros(8))
    adapter.input_is_parallel = kind == "RowParallelLinear"
    wrapper = torch.nn.ModuleDict({"to_wrap": layer(4, 8, bias=False), "adapter": adapter})
    return torch.nn.ModuleDict({"linear_fc1": wrapper})


def test_a_wrapped_weight_has_its_plain_name_and_its_adapter_is_stacked_as_it_is() -> None:
    found = {item.name: item.shard for item in named_parameters(adapted("ColumnParallelLinear"), tp_rank=1, tp_size=2)}
    assert {name: (shard.full, shard.dim, shard.pieces) for name, shard in found.items()} == {
        "linear_fc1.weight": ((16, 4), 0, 2),
        "linear_fc1.adapter.weight_magnitude": ((16,), 0, 2),
        "linear_fc1.adapter.linear_in.weight": ((4, 4), 0, 1),
        "linear_fc1.adapter.linear_out.weight": ((16, 2), 0, 2),
    }


def test_the_magnitude_of_a_row_parallel_layer_is_whole_on_every_rank() -> None:
    items = named_parameters(adapted("RowParallelLinear"), tp_rank=1, tp_size=2)
    assert next(item for item in items if item.name.endswith("weight_magnitude")).shard.dim is None


def test_weights_can_be_given_to_what_trains_alone() -> None:
    layer = adapted("ColumnParallelLinear")
    forget([layer])
    layer.linear_fc1.to_wrap.weight.requires_grad = False
    initialize(layer, seed=1, only_trained=True, tp_rank=0, tp_size=1)
    unset = [name for name, parameter in layer.named_parameters() if parameter.isnan().any()]
    assert unset == ["linear_fc1.to_wrap.weight"]
