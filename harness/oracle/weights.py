"""The weights of the model by global name: their shapes, and their initial values."""

from __future__ import annotations

from torch import Tensor, dtype

from harness.features.adapters.config import CANONICAL, DORA, PeftConfig
from harness.features.hybrid.pattern import ATTENTION, GATED_DELTA, MAMBA
from harness.features.vision.config import TOWER
from harness.oracle.drawing import initial_weight
from harness.oracle.fields import DeltaNet, Experts, Latent, Mamba, Model, Vision

EMBEDDING, POSITIONS, OUTPUT = "embedding.word_embeddings", "embedding.position_embeddings", "output_layer"
MERGER = f"{TOWER}merger"

Shapes = dict[str, tuple[int, ...]]


def shapes(model: Model) -> Shapes:
    """Return the global name -> shape of every weight, in the order of the model; with adapters only these train."""
    found: Shapes = _vision(model.vision) if model.vision else {}
    found[f"{EMBEDDING}.weight"] = (model.vocab, model.hidden)
    if model.places is not None:
        found[f"{POSITIONS}.weight"] = (model.places, model.hidden)
    for number in range(1, model.layers + 1):
        found |= _layer(layer_name(number), number, model)
    found |= _norm(final_norm(model), model.hidden, model)
    for depth in range(1, model.predictions + 1):
        at = prediction_name(depth)
        found |= {f"{at}.eh_proj.weight": (model.hidden, 2 * model.hidden)}
        for part in ("enorm", "hnorm", "final_layernorm"):
            found |= _norm(f"{at}.{part}", model.hidden, model)
        found |= _layer(f"{at}.mtp_model_layer", model.layers + depth, model)
    if not model.tied:
        found[f"{OUTPUT}.weight"] = (model.vocab, model.hidden)
    if model.adapters:
        for name in [name for name in found if model.adapters.adapts(name)]:
            (out, size), layer = found[name], name.removesuffix(".weight")
            found |= _adapter(layer, out, size, model, model.adapters)
    return found


def _adapter(layer: str, out: int, size: int, model: Model, peft: PeftConfig) -> Shapes:
    at, kind = f"{layer}.adapter", layer.rpartition(".")[2]
    parts = {at: out}
    if peft.method == CANONICAL and kind == "linear_qkv":
        keys = model.groups * model.head
        parts = {f"{at}.adapter_q": out - 2 * keys, f"{at}.adapter_k": keys, f"{at}.adapter_v": keys}
    elif peft.method == CANONICAL and kind == "linear_fc1":
        parts = dict.fromkeys((f"{at}.adapter_up", f"{at}.adapter_gate"), out // 2)
    found: Shapes = {f"{at}.weight_magnitude": (out,)} if peft.method == DORA else {}
    for part, width in parts.items():
        found |= {f"{part}.linear_in.weight": (peft.rank, size), f"{part}.linear_out.weight": (width, peft.rank)}
    return found


def final_norm(model: Model) -> str:
    """Return the name of the norm before the output layer."""
    # HybridModel's stack has another name for it than GPTModel's block.
    return "decoder.final_norm" if model.pattern else "decoder.final_layernorm"


def layer_name(number: int) -> str:
    """Return the name of layer `number`, from 1."""
    return f"decoder.layers.{number - 1}"


def deepstack_merger(index: int) -> str:
    """Return the name of the merger of the features that are added to the output of a layer of the language model, from
    0.
    """
    return f"{TOWER}decoder.deepstack_merger_list.{index}"


def prediction_name(depth: int) -> str:
    """Return the name of the prediction layer that looks `depth` tokens further, from 1."""
    return f"mtp.layers.{depth - 1}"


def initial_weights(model: Model, seed: int, kind: dtype) -> dict[str, Tensor]:
    """Return leaf tensors of dtype `kind`, with the values that ranks begin with: rounded as they store them."""
    drawn = {name: initial_weight(name, shape, seed) for name, shape in shapes(model).items()}
    return {name: weight.to(model.stored).to(kind).requires_grad_() for name, weight in drawn.items()}


def _vision(vision: Vision) -> Shapes:
    tower = vision.tower
    found: Shapes = {
        f"{TOWER}patch_embed.proj.weight": (tower.hidden, *vision.patch),
        f"{TOWER}patch_embed.proj.bias": (tower.hidden,),
        f"{TOWER}pos_embed.weight": (vision.places, tower.hidden),
    }
    for number in range(1, tower.layers + 1):
        found |= _layer(f"{TOWER}{layer_name(number)}", number, tower)
    width = tower.hidden * vision.merge**2
    normed = {deepstack_merger(index): width for index in range(len(vision.deepstack))} | {MERGER: tower.hidden}
    for at, size in normed.items():
        found |= _norm(f"{at}.patch_norm", size, tower)
        found |= _linear(f"{at}.linear_fc1", (width, width), tower.bias)
        found |= _linear(f"{at}.linear_fc2", (vision.out, width), tower.bias)
    return found


def _layer(at: str, number: int, model: Model) -> Shapes:
    found: Shapes = {}
    if model.mixes(number):
        found |= _mixer(at, model.pattern[number - 1] if model.pattern else ATTENTION, model)
    if not model.feeds(number):
        return found
    found |= _norm(f"{at}.pre_mlp_layernorm", model.hidden, model)
    if model.experts is not None and model.has_experts(number):
        return found | _experts(f"{at}.mlp", model, model.experts)
    return found | _feed_forward(f"{at}.mlp", model.ffn, model)


def _mixer(at: str, letter: str, model: Model) -> Shapes:
    if letter == MAMBA and model.mamba:
        return _norm(f"{at}.norm", model.hidden, model) | _mamba(f"{at}.mixer", model, model.mamba)
    found, attention = _norm(f"{at}.input_layernorm", model.hidden, model), f"{at}.self_attention"
    if letter == GATED_DELTA and model.delta:
        return found | _delta_net(attention, model, model.delta)
    found |= _grouped(attention, model) if model.latent is None else _latent(attention, model, model.latent)
    if model.softmax == "learnable":
        found[f"{attention}.core_attention.softmax_offset"] = (model.heads,)
    return found


def _delta_net(at: str, model: Model, kind: DeltaNet) -> Shapes:
    keys, values = kind.key_heads * kind.key, kind.heads * kind.value
    return {
        f"{at}.dt_bias": (kind.heads,),
        f"{at}.A_log": (kind.heads,),
        f"{at}.in_proj.weight": (2 * keys + 2 * values + 2 * kind.heads, model.hidden),
        f"{at}.conv1d.weight": (2 * keys + values, 1, kind.taps),
        **_norm(f"{at}.out_norm", kind.value, model),
        f"{at}.out_proj.weight": (model.hidden, values),
    }


def _mamba(at: str, model: Model, kind: Mamba) -> Shapes:
    inner, shared = kind.heads * kind.size, kind.groups * kind.state
    return {
        # Two parameters of the mixer since megatron-core 0.18; probe/weights.py gives older releases' module these
        # names.
        f"{at}.conv1d_weight": (inner + 2 * shared, 1, kind.taps),
        f"{at}.conv1d_bias": (inner + 2 * shared,),
        f"{at}.dt_bias": (kind.heads,),
        f"{at}.A_log": (kind.heads,),
        f"{at}.D": (kind.heads,),
        f"{at}.in_proj.weight": (2 * inner + 2 * shared + kind.heads, model.hidden),
        f"{at}.norm.weight": (inner,),
        f"{at}.out_proj.weight": (model.hidden, inner),
    }


def _grouped(at: str, model: Model) -> Shapes:
    mixed = model.heads * model.head
    found = _linear(f"{at}.linear_qkv", (mixed + 2 * model.groups * model.head, model.hidden), model.qkv_bias)
    found |= _linear(f"{at}.linear_proj", (model.hidden, mixed), model.bias)
    if model.qk_norm:
        found |= _norm(f"{at}.q_layernorm", model.head, model) | _norm(f"{at}.k_layernorm", model.head, model)
    return found


def _latent(at: str, model: Model, kind: Latent) -> Shapes:
    query = model.heads * (kind.still + kind.turned)
    found: Shapes = {
        f"{at}.linear_kv_down_proj.weight": (kind.rank + kind.turned, model.hidden),
        f"{at}.linear_kv_up_proj.weight": (model.heads * (kind.still + kind.value), kind.rank),
        **_linear(f"{at}.linear_proj", (model.hidden, model.heads * kind.value), model.bias),
    }
    if kind.query_rank is None:
        found[f"{at}.linear_q_proj.weight"] = (query, model.hidden)
    else:
        found[f"{at}.linear_q_down_proj.weight"] = (kind.query_rank, model.hidden)
        found[f"{at}.linear_q_up_proj.weight"] = (query, kind.query_rank)
    if model.qk_norm:
        found |= _norm(f"{at}.kv_layernorm", kind.rank, model)
        found |= {} if kind.query_rank is None else _norm(f"{at}.q_layernorm", kind.query_rank, model)
    return found


def _experts(at: str, model: Model, experts: Experts) -> Shapes:
    found: Shapes = {f"{at}.router.weight": (experts.count, model.hidden)}
    for number in range(experts.count):
        found |= _feed_forward(f"{at}.experts.{number}", experts.ffn, model)
    if experts.shared:
        found |= _feed_forward(f"{at}.shared_experts", experts.shared, model)
        found |= {f"{at}.shared_experts.gate_weight": (1, model.hidden)} if experts.shared_gate else {}
    return found


def _feed_forward(at: str, ffn: int, model: Model) -> Shapes:
    up = (2 * ffn if model.gated else ffn, model.hidden)
    return _linear(f"{at}.linear_fc1", up, model.bias) | _linear(f"{at}.linear_fc2", (model.hidden, ffn), model.bias)


def _linear(at: str, shape: tuple[int, int], bias: bool) -> Shapes:
    return {f"{at}.weight": shape, **({f"{at}.bias": shape[:1]} if bias else {})}


def _norm(at: str, size: int, model: Model) -> Shapes:
    return {f"{at}.weight": (size,), **({f"{at}.bias": (size,)} if model.normalization == "LayerNorm" else {})}
