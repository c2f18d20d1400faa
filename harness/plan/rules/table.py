"""All rules, in the order in which they are reported."""

from __future__ import annotations

from harness.plan.rules import attention, layout, loss, model, packing
from harness.plan.rules.rule import Rule
from harness.words.cell import CellConfig
from harness.words.outcomes import Rejection

RULES: tuple[Rule, ...] = layout.RULES + packing.RULES + loss.RULES + model.RULES + attention.RULES


def world_size_rule(max_ranks: int) -> Rule:
    """The one rule that depends on the launch section."""

    def predicate(config: CellConfig) -> str | None:
        shape = config.layout
        if shape.world_size <= max_ranks:
            return None
        sizes = f"tp {shape.tp} x pp {shape.pp} x cp {shape.cp} x dp {shape.dp}"
        return f"{sizes} = {shape.world_size} ranks, more than launch.max_ranks = {max_ranks}"

    return Rule("layout.world-size", "Megatron-LM: world size = TP * PP * CP * DP", predicate)


class Rulebook:
    """Rules, sorted once by the data paths and kinds of attention that they concern: a matrix has 100,000 cells."""

    def __init__(self, rules: tuple[Rule, ...] = RULES) -> None:
        self._rules = rules
        self._concerning: dict[tuple[str, str], list[Rule]] = {}

    def rejections(self, config: CellConfig) -> tuple[Rejection, ...]:
        """Every rule that forbids the cell, with its reason."""
        kind = (config.data_path, config.attention)
        concerning = self._concerning.get(kind)
        if concerning is None:
            concerning = [rule for rule in self._rules if kind[0] in rule.paths and kind[1] in rule.attentions]
            self._concerning[kind] = concerning
        broken = [(rule, reason) for rule in concerning if (reason := rule.predicate(config)) is not None]
        return tuple([Rejection(rule=rule.id, reason=reason, source=rule.source) for rule, reason in broken])


_ALWAYS = Rulebook()


def rejections(config: CellConfig) -> tuple[Rejection, ...]:
    """Every rule that forbids the cell whatever the matrix and the cluster."""
    return _ALWAYS.rejections(config)
