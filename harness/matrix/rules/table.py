"""All rules, in reporting order."""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Rejection
from harness.features.adapters.rules import ADAPTER_RULES
from harness.features.attention.rules import ATTENTION_RULES
from harness.features.experts.rules import EXPERT_RULES
from harness.features.hybrid.rules import HYBRID_RULES
from harness.features.optimizer.rules import SCHEDULE_RULES
from harness.features.prediction.rules import PREDICTION_RULES
from harness.features.recompute.rules import RECOMPUTE_RULES
from harness.features.resume.rules import RESUME_RULES
from harness.features.vision.rules import VISION_RULES
from harness.matrix.rules.packing import LAYOUT_RULES, LOSS_RULES, PACKING_RULES
from harness.matrix.rules.rule import Rule
from harness.matrix.rules.runtime import RUNTIME_RULES
from harness.matrix.rules.trainer import TRAINER_RULES
from harness.upstreams.megatron_bridge.rules import BRIDGE_RULES
from harness.upstreams.nemo_rl.rules import NEMO_RL_RULES
from harness.upstreams.skyrl.rules import SKYRL_RULES

_OF_MODEL = (
    *(*LAYOUT_RULES, *PACKING_RULES, *SKYRL_RULES, *NEMO_RL_RULES, *BRIDGE_RULES, *LOSS_RULES),
    *(*EXPERT_RULES, *PREDICTION_RULES, *HYBRID_RULES, *ADAPTER_RULES, *VISION_RULES),
)
_OF_EXECUTION = (*ATTENTION_RULES, *RECOMPUTE_RULES, *RUNTIME_RULES, *SCHEDULE_RULES, *TRAINER_RULES, *RESUME_RULES)
RULES: tuple[Rule, ...] = _OF_MODEL + _OF_EXECUTION
ADDED: list[Rule] = []  # by plug-ins; they follow the others


def rules_of(max_ranks: int, more: Iterable[Rule] = ()) -> tuple[Rule, ...]:
    """Return all rules of a matrix. `max_ranks`: of its launch section; `more`: those of the cluster."""
    return (*_OF_MODEL, world_size_rule(max_ranks), *_OF_EXECUTION, *ADDED, *more)


def world_size_rule(max_ranks: int) -> Rule:
    """Return the rule that depends on the launch section."""

    def predicate(config: CellConfig) -> str | None:
        layout = config.layout
        if layout.world_size <= max_ranks:
            return None
        sizes = f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp}"
        return f"{sizes} = {layout.world_size} ranks, more than launch.max_ranks = {max_ranks}"

    return Rule("layout.world-size", "Megatron-LM: world size = TP * PP * CP * DP", predicate)


def rejections(config: CellConfig, rules: Iterable[Rule] | None = None) -> tuple[Rejection, ...]:
    """Return every rule that forbids the cell, except the one it lifts, with its reason."""
    applied = (*RULES, *ADDED) if rules is None else rules
    broken = [(rule, reason) for rule in applied if (reason := rule.predicate(config)) is not None]
    not_lifted = [(rule, reason) for rule, reason in broken if rule.id != config.lift]
    return tuple([Rejection(rule=rule.id, reason=reason, source=rule.source) for rule, reason in not_lifted])
