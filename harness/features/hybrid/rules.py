"""Rules of layer patterns."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.core.cell.model import ACTIVATIONS
from harness.features.hybrid.pattern import CUT, GATED_DELTA, MAMBA
from harness.matrix.rules.rule import Rule, not_divisible


def cuts_by_stages(config: CellConfig) -> str | None:
    layout, cuts = config.layout, config.model.pattern.count(CUT)
    stages = layout.pp * layout.vpp
    # One stage takes the whole pattern: `pattern_of` removes its cuts.
    if not cuts or cuts + 1 == stages or stages == 1:
        return None
    return f"model.pattern has {cuts + 1} stages, and the layout has pp {layout.pp} x vpp {layout.vpp} = {stages}"


def interleaving_needs_cuts(config: CellConfig) -> str | None:
    layout = config.layout
    if not config.model.hybrid or layout.vpp == 1 or CUT in config.model.pattern:
        return None
    return (
        f"vpp {layout.vpp} without cuts: model.pattern needs {CUT} between its pp {layout.pp} x vpp {layout.vpp} chunks"
    )


def stages_by_cuts(config: CellConfig) -> str | None:
    """Return why the layout must not say which stage has which layers of a pattern."""
    layout, pattern = config.layout, config.model.pattern
    if not pattern or not layout.splits_unevenly:
        return None
    if layout.stages or layout.embedding_as_layer or layout.loss_as_layer:
        return f"model.pattern with stages, embedding_as_layer or loss_as_layer: cut the pattern with {CUT} instead"
    if CUT in pattern:
        return f"model.pattern is cut with {CUT}, so first_stage_layers and last_stage_layers must not be set"
    return None


def heads_by_ranks(config: CellConfig) -> str | None:
    """Recurrent layers exchange slots for heads over cp, so that a rank has all slots of some heads."""
    model, layout = config.model, config.layout
    ranks = layout.tp * layout.cp
    if not {GATED_DELTA, MAMBA} & {*model.pattern}:
        return None
    if uneven := not_divisible("model.heads", model.heads, f"tp {layout.tp} x cp {layout.cp} = {ranks}", ranks):
        return uneven
    if GATED_DELTA not in model.pattern:
        return None
    return not_divisible("model.kv_heads", model.kv_heads, f"tp {layout.tp} x cp {layout.cp} = {ranks}", ranks)


def groups_by_context(config: CellConfig) -> str | None:
    """Mamba's groups of heads (kv_heads of them) are copied over cp if there are fewer than ranks."""
    model, layout = config.model, config.layout
    if MAMBA not in model.pattern:
        return None
    if uneven := not_divisible("model.kv_heads", model.kv_heads, f"tp {layout.tp}", layout.tp):
        return uneven
    groups = model.kv_heads // layout.tp
    if groups % layout.cp == 0 or layout.cp % groups == 0:
        return None
    found = f"model.kv_heads {model.kv_heads} / tp {layout.tp} = {groups} groups"
    return f"{found}, neither a multiple nor a divisor of cp {layout.cp}"


def delta_net_is_by_silu(config: CellConfig) -> str | None:
    """A Gated Delta Net takes the activation of the model for its convolution."""
    model = config.model
    if GATED_DELTA not in model.pattern or ACTIVATIONS[model.activation].function == "silu":
        return None
    return f"model.activation is {model.activation}, and model.pattern has a Gated Delta Net"


def pattern_without_other_parts(config: CellConfig) -> str | None:
    """HybridModel has letters for latent attention, and a further pattern for prediction layers."""
    model = config.model
    if not model.pattern or not (model.mtp or model.mla):
        return None
    return f"model.pattern with model.{'mtp' if model.mtp else 'mla'}: the probe does not build it in hybrid models"


_PATTERN = "Megatron-LM 0.19 models/hybrid/hybrid_layer_allocation.py select_pipeline_segment"


HYBRID_RULES: tuple[Rule, ...] = (
    Rule("hybrid.cuts-by-stages", f"{_PATTERN}: number of segments", cuts_by_stages),
    Rule("hybrid.interleaving-needs-cuts", f"{_PATTERN}: no virtual stages without them", interleaving_needs_cuts),
    Rule(
        "hybrid.stages",
        "Megatron-LM validate_args: what --hybrid-layer-pattern must not be used with; select_pipeline_segment",
        stages_by_cuts,
    ),
    Rule(
        "hybrid.heads-by-ranks",
        "Megatron-LM TransformerConfig (gated_delta_net) and MambaContextParallel: heads % (TP * CP) == 0",
        heads_by_ranks,
    ),
    Rule(
        "hybrid.groups-by-context",
        "Megatron-LM MambaMixer.__init__: ngroups % TP; MambaContextParallel.__init__: ngroups and cp_size",
        groups_by_context,
    ),
    Rule(
        "hybrid.delta-net-activation",
        'Megatron-LM GatedDeltaNet.forward: assert self.activation in ["silu", "swish"]',
        delta_net_is_by_silu,
    ),
    Rule("hybrid.parts", "harness: the probe's hybrid models have neither", pattern_without_other_parts),
)
