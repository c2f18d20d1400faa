"""Makes the model and the batch of a training run small, with their structure kept, and its layout as it is.

A packing bug depends on how a layout splits rows, heads, layers and experts, and hardly on how large they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.core.cell.layout import Layout
from harness.core.cell.stages import DECODER, stages_of
from harness.core.packing.options import align_up
from harness.features.experts.layers import EVERY, shortened, with_experts

_MAX_REPLICAS = 2
_HEAD_SIZE = 8
_VOCABULARY = 128
_DOCUMENTS = 8
_WINDOW = 8  # tokens; less than most documents have
_STAGES = ("first_stage_layers", "last_stage_layers", "embedding_as_layer", "loss_as_layer", "stages")
_LAYOUT = ("tp", "pp", "cp", "dp", "ep", "etp", "vpp", "sp", "pp_before_dp", *_STAGES)
_EVERY_NTH = ("model.window_skip", "model.no_rope_freq")  # layers; 2 of a chunk have both kinds
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 8}


class Change(NamedTuple):
    """A key whose value in the matrix is another than in the run."""

    key: str
    was: Any
    now: tuple[Any, ...]  # one, or of the layout as many as cells have

    def __str__(self) -> str:
        return f"{self.key} {_text(self.was)} -> {_text(self.now)}"


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    keys: Mapping[str, Any]  # as in Translation, without the layout
    layouts: tuple[Mapping[str, Any], ...]  # the run's own first
    changes: tuple[Change, ...]
    kept: tuple[str, ...]  # what is as in the run, as text: the layout first


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " and ".join(map(_text, value))
    return "none" if value is None else str(value)


def shrink(keys: Mapping[str, Any], most_ranks: int) -> Shrunk:
    """Return small sizes for the keys of a Translation, and layouts of at most `most_ranks` ranks beside its own."""
    own = {name: keys[name] for name in _LAYOUT if name in keys}
    if "model.moe.experts" not in keys:
        own = {name: value for name, value in own.items() if name not in ("ep", "etp")}
    own["dp"] = max(min(own.get("dp", 1), _MAX_REPLICAS), _replicas(own))
    small = {name: value for name, value in keys.items() if name not in _LAYOUT}
    layers = _stages(own, keys["model.layers"])
    layout = Layout(**own)
    chunks = layout.pp * layout.vpp
    mixed = keys.get("model.moe.layer_freq", EVERY) != EVERY
    count = layers or chunks * (2 if any(keys.get(name) for name in _EVERY_NTH) or (mixed and chunks == 1) else 1)
    small |= _attention(keys, layout) | _experts(keys, layout, count) | _latent(keys) | _schedule(keys)
    small |= {
        "model.layers": count,
        **({"model.no_rope_freq": 1 if count % 2 else 2} if keys.get("model.no_rope_freq") else {}),
        **({"model.head_size": 2 * _HEAD_SIZE} if keys.get("model.head_size") else {}),
        "model.vocab": align_up(_VOCABULARY, layout.tp),
        "model.ffn": align_up(2 * small["model.hidden"], layout.tp),
        "train.seq_length": 8 * align_up(_DOCUMENTS, layout.alignment),
        **({"model.window": min(_WINDOW, keys["model.window"])} if "model.window" in keys else {}),
        "train.global_batch": _DOCUMENTS * layout.dp * keys.get("micro_batch_size", 1),
    }
    small |= _packing(keys, layout, small["train.seq_length"])
    if "model.mla.kv_lora_rank" in keys:
        small.pop("model.head_size", None)  # latent attention has its own sizes of heads
    layouts = _of_the_same_axes((own, *(_fitted(smaller, own, count) for smaller in _smaller(own, most_ranks))))
    values = {name: tuple(dict.fromkeys(row[name] for row in layouts[1:] or layouts)) for name in layouts[0]}
    values |= {name: (value,) for name, value in small.items()}
    of_run = {name: found for name, found in values.items() if name in keys}
    return Shrunk(
        keys=small,
        layouts=layouts,
        changes=tuple(Change(name, keys[name], found) for name, found in of_run.items() if found != (keys[name],)),
        kept=tuple(f"{name} {_text(found)}" for name, found in of_run.items() if found == (keys[name],)),
    )


def _of_the_same_axes(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the layouts, each with every axis that one of them has, as a matrix needs them."""
    names = [name for name in _LAYOUT if any(name in row for row in rows)]
    return tuple({name: row.get(name, getattr(Layout(), name)) for name in names} for row in rows)


def _stages(own: dict[str, Any], layers: int) -> int:
    """Scale stages of unequal size: one layer per chunk where a stage has fewer than others, else two.

    Changes the keys of the layout. Returns the number of layers; 0 if stages have equal parts.
    """
    pp, vpp = int(own["pp"]), int(own.get("vpp", 1))
    if own.get("stages"):
        chunks = stages_of(own["stages"])
        most = max(chunk.count(DECODER) for chunk in chunks)
        cut = [re.sub(f"{DECODER}+", lambda run: DECODER * (2 if len(run[0]) == most > 1 else 1), c) for c in chunks]
        own["stages"] = "|".join(cut)
        return sum(chunk.count(DECODER) for chunk in cut)
    if own.get("embedding_as_layer") or own.get("loss_as_layer"):
        return 2 * pp * vpp - bool(own.get("embedding_as_layer")) - bool(own.get("loss_as_layer"))
    sizes = {name: int(own[name]) for name in _STAGES[:2] if own.get(name)}
    if not sizes:
        return 0
    others = pp - len(sizes)
    middle = (layers - sum(sizes.values())) // others if others else max(sizes.values())
    most = max(middle, *sizes.values())
    scaled = {name: vpp * (2 if size == most else 1) for name, size in sizes.items()}
    own.update(scaled)
    return sum(scaled.values()) + others * vpp * (2 if middle == most else 1)


def _fitted(smaller: dict[str, Any], own: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return a smaller layout with stages for the layers of the run's own, where these do not split as they must."""
    pp, vpp = smaller["pp"], smaller.get("vpp", 1)
    even = not any(own.get(name) for name in _STAGES)
    if (pp, vpp) == (own["pp"], own.get("vpp", 1)) or (even and layers % (pp * vpp) == 0):
        return smaller
    plain = {name: value for name, value in smaller.items() if name not in (*_STAGES, "vpp")}
    return plain if pp == 1 else {**plain, "first_stage_layers": layers % (pp - 1) or pp - 1}


def _replicas(own: Mapping[str, Any]) -> int:
    """Return the fewest replicas over which experts can be split."""
    ranks_of_experts = int(own.get("ep", 1)) * int(own.get("etp") or own["tp"])
    return max(1, -(-ranks_of_experts // int(own["tp"] * own["cp"])))


def _attention(keys: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Return the fewest heads that the layout splits, in the run's proportion of heads to key/value heads."""
    groups = keys["model.kv_heads"]
    per_group = max(1, keys["model.heads"] // groups)
    per_group = min(per_group, 4)
    kv_heads = align_up(1, layout.tp) if groups >= layout.tp else groups
    heads = align_up(kv_heads * per_group, layout.tp)
    size = 2 * _HEAD_SIZE if "model.mla.kv_lora_rank" in keys else _HEAD_SIZE
    return {"model.kv_heads": kv_heads, "model.heads": heads, "model.hidden": size * heads}


def _latent(keys: Mapping[str, Any]) -> dict[str, Any]:
    names = {f"model.mla.{name}": size for name, size in _LATENT.items()}
    return {name: size for name, size in names.items() if keys.get(name)}


def _schedule(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schedule of few steps that warms up and decays where the run's does; it ends with the last step."""
    names = ("train.lr_warmup_iters", "train.lr_wsd_decay_iters")
    found: dict[str, Any] = {name: 1 for name in names if keys.get(name)}
    return found | ({"train.lr_decay_iters": None} if keys.get("train.lr_decay_iters") else {})


def _packing(keys: Mapping[str, Any], layout: Layout, seq_length: int) -> dict[str, Any]:
    """Return the padding of documents and the length of a row of several, which must hold documents side by side."""
    found = {}
    if multiple := keys.get("packing_options.pad_seq_to_mult"):
        found["packing_options.pad_seq_to_mult"] = min(multiple, 2 * layout.alignment)
    if budget := keys.get("packing_options.max_tokens_per_microbatch"):
        found["packing_options.max_tokens_per_microbatch"] = seq_length * max(1, budget // keys["train.seq_length"])
    return found


def _experts(keys: Mapping[str, Any], layout: Layout, layers: int) -> dict[str, Any]:
    if "model.moe.experts" not in keys:
        return {}
    topk = min(keys.get("model.moe.topk", 2), 8)
    found = {
        "model.moe.topk": topk,
        "model.moe.experts": align_up(max(2 * topk, 4), math.lcm(layout.ep, 2)),
        "model.moe.ffn": align_up(32, layout.tp),
    }
    if "model.moe.layer_freq" in keys:
        # At least one dense layer and one with experts, as they follow each other in the run.
        kinds = with_experts(keys["model.moe.layer_freq"], keys["model.layers"])
        found["model.moe.layer_freq"] = shortened(kinds, layers)
    return found | ({"model.moe.shared_ffn": align_up(32, layout.tp)} if keys.get("model.moe.shared_ffn") else {})


def _smaller(own: Mapping[str, Any], most_ranks: int) -> list[dict[str, Any]]:
    """Return layouts of at most `most_ranks` ranks that together have what the run's has: one with every dimension
    that it has, cut to 2, and one with a middle pipeline stage.
    """
    if Layout(**own).world_size <= most_ranks:
        return []
    cut = {name: min(own[name], 2) for name in ("tp", "pp", "cp")}
    every = _within({**own, **cut, "dp": 1}, ("cp", "pp", "tp"), most_ranks)
    middle = (
        _within({**own, **cut, "pp": min(own["pp"], 4), "dp": 1}, ("cp", "tp"), most_ranks) if own["pp"] > 2 else None
    )
    found = [_consistent(layout) for layout in (every, middle) if layout]
    return [layout for index, layout in enumerate(found) if layout not in found[:index]]


def _within(layout: dict[str, Any], order: tuple[str, ...], most_ranks: int) -> dict[str, Any] | None:
    """Set dimensions to 1, in this order, until the layout has few enough ranks; None if it never has."""
    for name in ("", *order):
        layout = {**layout, name: 1} if name else layout
        if layout["tp"] * layout["pp"] * layout["cp"] <= most_ranks:
            return layout
    return None


def _consistent(layout: dict[str, Any]) -> dict[str, Any]:
    """Return the layout without what its sizes do not allow."""
    result = {**layout, "sp": layout["sp"] and layout["tp"] > 1}
    if layout["pp"] == 1:
        result.pop("vpp", None)
    if "ep" in layout:
        result["ep"] = math.gcd(layout["ep"], layout["dp"] * layout["cp"])
    if layout.get("etp", 0) > layout["tp"]:
        result["etp"] = layout["tp"]
    return result
