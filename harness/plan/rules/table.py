"""All rules, in reporting order."""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Rejection
from harness.plan.rules.model import ADAPTER_RULES, EXPERT_RULES, HYBRID_RULES, MODEL_RULES, VISION_RULES
from harness.plan.rules.packing import LAYOUT_RULES, LOSS_RULES, PACKING_RULES
from harness.plan.rules.rule import Own, Rule, Shape, own_of
from harness.plan.rules.runtime import ATTENTION_RULES, RUNTIME_RULES
from harness.plan.rules.trainer import RESUME_RULES, TRAINER_RULES

SHAPE_RULES: tuple[Rule[Shape], ...] = (
    LAYOUT_RULES + PACKING_RULES + LOSS_RULES + MODEL_RULES + HYBRID_RULES + EXPERT_RULES + ADAPTER_RULES + VISION_RULES
)
# Of dtype, attention, device, recomputation, process groups, trainer, checkpoints.
CELL_RULES: tuple[Rule[CellConfig], ...] = ATTENTION_RULES + RUNTIME_RULES + TRAINER_RULES + RESUME_RULES
RULES: tuple[Rule[CellConfig], ...] = SHAPE_RULES + CELL_RULES
ADDED: list[Rule[CellConfig]] = []  # by plug-ins; they follow the others


def world_size_rule(max_ranks: int) -> Rule[Shape]:
    """The rule that depends on the launch section."""

    def predicate(config: Shape) -> str | None:
        layout = config.layout
        if layout.world_size <= max_ranks:
            return None
        sizes = f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp}"
        return f"{sizes} = {layout.world_size} ranks, more than launch.max_ranks = {max_ranks}"

    return Rule("layout.world-size", "Megatron-LM: world size = TP * PP * CP * DP", predicate)


def concerning(own: Own, rules: Iterable[Rule[CellConfig]]) -> tuple[Rule[CellConfig], ...]:
    """The rules that can forbid a cell with these values."""
    return tuple([rule for rule in rules if rule.concerns(own)])


def concerning_shape(config: Shape, rules: Iterable[Rule[Shape]]) -> tuple[Rule[Shape], ...]:
    """The rules that can forbid a cell with this data path and model."""
    return tuple([rule for rule in rules if rule.concerns_shape(config.data_path, config.model)])


def rejections(config: CellConfig, rules: Iterable[Rule[CellConfig]] | None = None) -> tuple[Rejection, ...]:
    """Every rule that forbids the cell, with its reason."""
    return forbidden_by(config, concerning(own_of(config), (*RULES, *ADDED) if rules is None else rules))


def forbidden_by(config: CellConfig, rules: Iterable[Rule[CellConfig]]) -> tuple[Rejection, ...]:
    """Every rule that forbids the cell, except the one it lifts; `rules`: of those that `concerning` gives."""
    broken = [(rule, reason) for rule in rules if (reason := rule.predicate(config)) is not None]
    kept = [(rule, reason) for rule, reason in broken if rule.id != config.lift]
    return tuple([Rejection(rule=rule.id, reason=reason, source=rule.source) for rule, reason in kept])
