"""Names and shapes of weights, as Megatron's checkpoints of one rank have them."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.features.adapters.config import CANONICAL, DORA, PeftConfig
from harness.features.vision.config import TOWER
from harness.oracle.drawing import initial_weight
from harness.oracle.fields import DeltaNet, Experts, Latent, Mamba, Model, Rotary, Vision
from harness.oracle.weights import (
    Shapes,
    deepstack_merger,
    final_norm,
    initial_weights,
    layer_name,
    prediction_name,
    shapes,
)

# Four queries of 5 elements, two keys and values.
MODEL = Model(layers=1, hidden=6, vocab=11, heads=4, groups=2, head=5, ffn=7)
LAYER, ATTENTION, BLOCK = "decoder.layers.0", "decoder.layers.0.self_attention", "decoder.layers.0.mlp"
PLAIN = {
    "embedding.word_embeddings.weight": (11, 6),
    f"{LAYER}.input_layernorm.weight": (6,),
    f"{ATTENTION}.linear_qkv.weight": (40, 6),
    f"{ATTENTION}.linear_proj.weight": (6, 20),
    f"{LAYER}.pre_mlp_layernorm.weight": (6,),
    f"{BLOCK}.linear_fc1.weight": (14, 6),
    f"{BLOCK}.linear_fc2.weight": (6, 7),
    "decoder.final_layernorm.weight": (6,),
    "output_layer.weight": (11, 6),
}


def more(model: Model) -> Shapes:
    """What a model has beside PLAIN, or in other shapes."""
    found = shapes(model)
    return {name: shape for name, shape in found.items() if PLAIN.get(name) != shape}


def without(model: Model) -> set[str]:
    """What it lacks of PLAIN."""
    return PLAIN.keys() - shapes(model).keys()


def test_a_dense_model_has_these_weights_in_order() -> None:
    assert list(shapes(MODEL).items()) == list(PLAIN.items())


def test_tied_models_have_no_output_layer() -> None:
    assert (more(replace(MODEL, tied=True)), without(replace(MODEL, tied=True))) == ({}, {"output_layer.weight"})


def test_biases_are_of_linear_layers_and_norms_have_theirs() -> None:
    linear = {
        f"{ATTENTION}.linear_proj.bias": (6,),
        f"{BLOCK}.linear_fc1.bias": (14,),
        f"{BLOCK}.linear_fc2.bias": (6,),
    }
    assert more(replace(MODEL, bias=True)) == linear
    assert more(replace(MODEL, qkv_bias=True)) == {f"{ATTENTION}.linear_qkv.bias": (40,)}
    norms = (f"{LAYER}.input_layernorm", f"{LAYER}.pre_mlp_layernorm", "decoder.final_layernorm")
    assert more(replace(MODEL, normalization="LayerNorm")) == {f"{name}.bias": (6,) for name in norms}


def test_without_gates_the_first_map_is_half_as_wide() -> None:
    assert more(replace(MODEL, gated=False)) == {f"{BLOCK}.linear_fc1.weight": (7, 6)}


def test_attention_has_norms_of_heads_and_a_sink_for_each() -> None:
    assert more(replace(MODEL, qk_norm=True)) == {
        f"{ATTENTION}.q_layernorm.weight": (5,),
        f"{ATTENTION}.k_layernorm.weight": (5,),
    }
    assert more(replace(MODEL, softmax="learnable")) == {f"{ATTENTION}.core_attention.softmax_offset": (4,)}


def test_latent_attention_has_maps_down_and_up() -> None:
    kind = Latent(query_rank=3, rank=8, still=5, turned=2, value=9, scale=1.0, rotary=Rotary())
    down_and_up = {
        f"{ATTENTION}.linear_kv_down_proj.weight": (10, 6),
        f"{ATTENTION}.linear_kv_up_proj.weight": (56, 8),
        f"{ATTENTION}.linear_proj.weight": (6, 36),
    }
    query = {f"{ATTENTION}.linear_q_down_proj.weight": (3, 6), f"{ATTENTION}.linear_q_up_proj.weight": (28, 3)}
    norms = {f"{ATTENTION}.kv_layernorm.weight": (8,), f"{ATTENTION}.q_layernorm.weight": (3,)}
    latent = replace(MODEL, latent=kind)
    assert more(latent) == down_and_up | query
    assert more(replace(latent, qk_norm=True)) == down_and_up | query | norms
    direct = replace(latent, latent=replace(kind, query_rank=None))
    assert more(direct) == down_and_up | {f"{ATTENTION}.linear_q_proj.weight": (28, 6)}
    assert f"{ATTENTION}.q_layernorm.weight" not in shapes(replace(direct, qk_norm=True))
    assert more(replace(latent, bias=True))[f"{ATTENTION}.linear_proj.bias"] == (6,)


def test_experts_replace_the_block_and_a_shared_one_may_have_a_gate() -> None:
    model = replace(MODEL, experts=Experts(count=2, chosen=1, ffn=3))
    own = {f"{BLOCK}.router.weight": (2, 6)}
    for number in range(2):
        own |= {f"{BLOCK}.experts.{number}.linear_fc1.weight": (6, 6)}
        own |= {f"{BLOCK}.experts.{number}.linear_fc2.weight": (6, 3)}
    assert more(model) == own
    assert without(model) == {f"{BLOCK}.linear_fc1.weight", f"{BLOCK}.linear_fc2.weight"}
    assert model.experts
    shared = {f"{BLOCK}.shared_experts.linear_fc1.weight": (10, 6), f"{BLOCK}.shared_experts.linear_fc2.weight": (6, 5)}
    assert more(replace(model, experts=replace(model.experts, shared=5))) == own | shared
    gate = {f"{BLOCK}.shared_experts.gate_weight": (1, 6)}
    assert more(replace(model, experts=replace(model.experts, shared=5, shared_gate=True))) == own | shared | gate


def test_layers_may_differ_in_whether_they_have_experts() -> None:
    model = replace(MODEL, layers=2, experts=Experts(count=2, chosen=1, ffn=3), expert_layers=(False, True))
    assert [name.split(".")[2] for name in shapes(model) if "router" in name] == ["1"]
    assert f"{BLOCK}.linear_fc1.weight" in shapes(model)


def test_prediction_layers_have_a_projection_and_three_norms() -> None:
    model = replace(MODEL, predictions=2)
    found = more(model)
    for depth in range(2):
        at, inner = f"mtp.layers.{depth}", f"mtp.layers.{depth}.mtp_model_layer"
        own = {name.removeprefix(f"{at}."): found.pop(name) for name in list(found) if name.startswith(f"{at}.")}
        layer = {name: shape for name, shape in PLAIN.items() if name.startswith(f"{LAYER}.")}
        assert own == {
            "eh_proj.weight": (6, 12),
            **{f"{part}.weight": (6,) for part in ("enorm", "hnorm", "final_layernorm")},
            **{f"{name.replace(LAYER, inner).removeprefix(f'{at}.')}": shape for name, shape in layer.items()},
        }
    assert found == {}


def test_prediction_layers_have_experts_as_the_last_layer_has() -> None:
    experts = Experts(count=2, chosen=1, ffn=3)
    for layers in ((True, False), (False, True)):
        model = replace(MODEL, layers=2, predictions=1, experts=experts, expert_layers=layers)
        assert ("mtp.layers.0.mtp_model_layer.mlp.router.weight" in shapes(model)) is layers[1]


def test_layers_of_a_pattern_have_a_mixer_or_a_block() -> None:
    delta = DeltaNet(heads=4, value=3, key_heads=2, key=5, taps=4)
    mamba = Mamba(heads=4, size=3, groups=2, state=5)
    model = replace(MODEL, layers=4, pattern="GM-*", delta=delta, mamba=mamba)
    found = shapes(model)
    assert final_norm(model) == "decoder.final_norm" and final_norm(MODEL) == "decoder.final_layernorm"
    at = "decoder.layers.{}"
    by_layer = [
        {name.removeprefix(f"{prefix}."): shape for name, shape in found.items() if name.startswith(f"{prefix}.")}
        for prefix in map(at.format, range(4))
    ]
    assert by_layer == [
        {
            "input_layernorm.weight": (6,),
            "self_attention.dt_bias": (4,),
            "self_attention.A_log": (4,),
            "self_attention.in_proj.weight": (52, 6),
            "self_attention.conv1d.weight": (32, 1, 4),
            "self_attention.out_norm.weight": (3,),
            "self_attention.out_proj.weight": (6, 12),
        },
        {
            "norm.weight": (6,),
            "mixer.conv1d_weight": (32, 1, 4),
            "mixer.conv1d_bias": (32,),
            "mixer.dt_bias": (4,),
            "mixer.A_log": (4,),
            "mixer.D": (4,),
            "mixer.in_proj.weight": (48, 6),
            "mixer.norm.weight": (12,),
            "mixer.out_proj.weight": (6, 12),
        },
        {"pre_mlp_layernorm.weight": (6,), "mlp.linear_fc1.weight": (14, 6), "mlp.linear_fc2.weight": (6, 7)},
        {
            "input_layernorm.weight": (6,),
            "self_attention.linear_qkv.weight": (40, 6),
            "self_attention.linear_proj.weight": (6, 20),
        },
    ]
    assert found.keys() - {f"{at.format(number)}.{name}" for number, own in enumerate(by_layer) for name in own} == {
        "embedding.word_embeddings.weight",
        "decoder.final_norm.weight",
        "output_layer.weight",
    }


def factors(layer: str, out: int, size: int) -> Shapes:
    return {f"{layer}.linear_in.weight": (3, size), f"{layer}.linear_out.weight": (out, 3)}


def test_adapters_have_two_factors_for_each_linear_layer() -> None:
    sizes = {"linear_qkv": (40, 6), "linear_proj": (6, 20), "linear_fc1": (14, 6), "linear_fc2": (6, 7)}
    at = {name: f"{ATTENTION if name in ('linear_qkv', 'linear_proj') else BLOCK}.{name}.adapter" for name in sizes}
    plain: Shapes = {}
    for name, (out, size) in sizes.items():
        plain |= factors(at[name], out, size)
    assert more(replace(MODEL, adapters=PeftConfig(rank=3))) == plain
    magnitudes = {f"{at[name]}.weight_magnitude": (out,) for name, (out, _) in sizes.items()}
    assert more(replace(MODEL, adapters=PeftConfig(rank=3, method=DORA))) == plain | magnitudes
    apart: Shapes = {}
    for name, out in (("adapter_q", 20), ("adapter_k", 10), ("adapter_v", 10)):
        apart |= factors(f"{at['linear_qkv']}.{name}", out, 6)
    for name in ("adapter_up", "adapter_gate"):
        apart |= factors(f"{at['linear_fc1']}.{name}", 7, 6)
    apart |= factors(at["linear_proj"], 6, 20) | factors(at["linear_fc2"], 6, 7)
    assert more(replace(MODEL, adapters=PeftConfig(rank=3, method=CANONICAL))) == apart


def test_a_tower_has_patches_places_layers_and_mergers() -> None:
    tower = replace(MODEL, layers=1, hidden=4, heads=2, groups=2, head=2, ffn=3, gated=False, bias=True)
    vision = Vision(tower=tower, patch=(3, 2, 5, 5), merge=3, places=9, out=6, deepstack=(0,), token=4)
    found = {
        name.removeprefix(TOWER): shape for name, shape in more(replace(MODEL, vision=vision)).items() if TOWER in name
    }
    assert {name: shape for name, shape in found.items() if not name.startswith("decoder.layers.")} == {
        "patch_embed.proj.weight": (4, 3, 2, 5, 5),
        "patch_embed.proj.bias": (4,),
        "pos_embed.weight": (9, 4),
        "decoder.deepstack_merger_list.0.patch_norm.weight": (36,),
        "decoder.deepstack_merger_list.0.linear_fc1.weight": (36, 36),
        "decoder.deepstack_merger_list.0.linear_fc1.bias": (36,),
        "decoder.deepstack_merger_list.0.linear_fc2.weight": (6, 36),
        "decoder.deepstack_merger_list.0.linear_fc2.bias": (6,),
        "merger.patch_norm.weight": (4,),
        "merger.linear_fc1.weight": (36, 36),
        "merger.linear_fc1.bias": (36,),
        "merger.linear_fc2.weight": (6, 36),
        "merger.linear_fc2.bias": (6,),
    }
    assert found["decoder.layers.0.self_attention.linear_qkv.weight"] == (12, 4)
    assert found["decoder.layers.0.mlp.linear_fc1.weight"] == (3, 4)
    assert list(shapes(replace(MODEL, vision=vision)))[len(found) :] == list(PLAIN)
    plain = replace(vision, tower=replace(tower, bias=False), deepstack=())
    assert [name for name in shapes(replace(MODEL, vision=plain)) if "merger" in name] == [
        f"{TOWER}merger.{part}.weight" for part in ("patch_norm", "linear_fc1", "linear_fc2")
    ]


def test_layers_are_numbered_from_one_and_named_from_zero() -> None:
    assert (layer_name(1), prediction_name(2)) == ("decoder.layers.0", "mtp.layers.1")
    assert deepstack_merger(1) == f"{TOWER}decoder.deepstack_merger_list.1"


def test_weights_begin_as_drawn_and_need_gradients() -> None:
    for name, weight in initial_weights(MODEL, 5, torch.float64).items():
        assert weight.requires_grad and weight.is_leaf and weight.dtype == torch.float64
        assert torch.equal(weight, initial_weight(name, PLAIN[name], 5).double())
