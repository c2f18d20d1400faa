"""Names, numbers and sections of layers in hybrid models; the models themselves: tests/matrices/test_hybrid.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.cell.model import ModelConfig
from harness.core.cell.upstream_config import recurrent_fields
from harness.features.hybrid.node_model import numbered_layers, pattern_of, sections, unsupported_hybrid
from harness.probe.weights import Shard
from tests.runtime.conftest import config


def test_params_are_recorded_where_a_layer_gets_them() -> None:
    delta: Any = SimpleNamespace(gated_delta_rule=None)
    routed = SimpleNamespace(router="router")
    layers = [
        SimpleNamespace(layer_number=1, self_attention=SimpleNamespace(core_attention="core")),
        SimpleNamespace(layer_number=2, self_attention=delta),
        SimpleNamespace(layer_number=3, mixer="mixer"),
        SimpleNamespace(layer_number=4, self_attention=SimpleNamespace(), mlp=routed),
    ]
    found = list(numbered_layers(SimpleNamespace(decoder=SimpleNamespace(layers=layers))))
    assert [at.mixer for at in found] == ["core", delta, "mixer", None]
    assert [at.experts for at in found] == [None, None, None, layers[3]]


def test_shards_of_a_projection_hold_their_share_of_every_section() -> None:
    upstream = SimpleNamespace(**recurrent_fields(ModelConfig(hidden=64, heads=8, kv_heads=4, layers=2, pattern="G-")))
    sizes = sections(SimpleNamespace(gated_delta_rule=None, config=upstream), "in_proj.weight")
    assert sizes == (32, 32, 64, 64, 8, 8)  # query, key, value, gate, beta, alpha
    full = torch.arange(float(sum(sizes)))[:, None]
    shards = [
        Shard(full=(len(full), 1), dim=0, pieces=1, index=rank, count=2, sections=sizes).take(full) for rank in (0, 1)
    ]
    starts = [0, 32, 64, 128, 192, 200]
    for rank in (0, 1):
        firsts = [start + rank * size // 2 for start, size in zip(starts, sizes, strict=True)]
        rows = [row for first, size in zip(firsts, sizes, strict=True) for row in range(first, first + size // 2)]
        assert shards[rank][:, 0].tolist() == rows


def test_mambas_sections_are_those_of_its_projection_and_convolution() -> None:
    upstream = SimpleNamespace(**recurrent_fields(ModelConfig(layers=2, pattern="M-")))
    mixer = SimpleNamespace(d_state=16, config=upstream)
    assert sections(mixer, "in_proj.weight") == (128, 128, 64, 64, 8)  # gate, value, B, C, dt
    assert sections(mixer, "conv1d_bias") == (128, 64, 64)
    assert sections(mixer, "out_proj.weight") == ()


def test_one_rank_has_no_cuts_and_this_release_has_hybrid_models() -> None:
    model = ModelConfig(layers=4, pattern="G-|*-")
    assert pattern_of(replace(config("reference"), model=model)) == "G-*-"
    assert pattern_of(replace(config("reference", pp=2), model=model)) == "G-|*-"
    assert unsupported_hybrid(replace(config("reference"), model=model)) is None


def test_releases_without_hybrid_models_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    model = replace(config("reference"), model=ModelConfig(layers=2, pattern="G-"))
    assert "has no HybridModel: model.pattern needs 0.18 or later" in str(unsupported_hybrid(model))
    assert unsupported_hybrid(config("reference")) is None
