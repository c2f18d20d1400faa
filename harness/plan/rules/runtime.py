"""Rules of what backward recomputes, of process groups that are passed explicitly, and of upstream's unit tests."""

from __future__ import annotations

from harness.core.cell.axis_values import EXPLICIT, GROUPS, SPLIT
from harness.core.cell.config import CellConfig
from harness.core.data_paths.own import UPSTREAM_TESTS
from harness.plan.rules.rule import Own, Rule


def split_needs_whole_activations(config: CellConfig) -> str | None:
    layout = config.layout
    if config.recompute != SPLIT or (layout.tp > 1 and not layout.sp):
        return None
    base = f"recompute {SPLIT} splits the saved input of a layer over tp"
    if layout.tp == 1:
        return f"{base}, and tp is 1; use recompute: full"
    return f"{base} {layout.tp}, and with sp it is split already; use recompute: full, or sp: false"


def groups_of_other_ranks(config: CellConfig) -> str | None:
    layout = config.layout
    if config.groups != EXPLICIT or (layout.tp > 1 and layout.dp > 1):
        return None
    return (
        f"groups: {EXPLICIT} needs tp and dp above 1, and they are {layout.tp} and {layout.dp}: otherwise the global "
        "groups would be those of the model"
    )


def groups_of_stages(config: CellConfig) -> str | None:
    layout = config.layout
    if config.groups != EXPLICIT or layout.pp * layout.vpp == 1:
        return None
    return f"groups: {EXPLICIT} passes no communicator between stages to the schedule, and pp is {layout.pp}"


def groups_of_the_trainer(config: CellConfig) -> str | None:
    if config.groups != EXPLICIT or config.own_trainer:
        return None
    return f"trainer {config.trainer} uses Megatron's global groups; groups: {EXPLICIT} needs trainer: harness"


def _splits(own: Own) -> bool:
    return own.recompute == SPLIT


def _passes_groups(own: Own) -> bool:
    return own.groups != GROUPS[0]


def tests_of_upstream(config: CellConfig) -> str | None:
    name, own = config.upstream_tests.name, config.data_path == UPSTREAM_TESTS.name
    if own == bool(name):
        return None
    if own:
        return "packing upstream_tests runs the tests that the axis upstream_tests names, and it names none"
    return f"upstream_tests is {name}, which only packing upstream_tests runs, and packing is {config.data_path}"


RULES: tuple[Rule[CellConfig], ...] = (
    Rule("upstream-tests.case", "harness: packing upstream_tests needs tests, other packing none", tests_of_upstream),
    Rule(
        "recompute.split",
        "Megatron-LM TransformerConfig: distribute_saved_activations without sequence_parallel",
        split_needs_whole_activations,
        _splits,
    ),
    Rule("groups.other-ranks", "harness: the probe's other order of ranks", groups_of_other_ranks, _passes_groups),
    Rule("groups.stages", "harness: the probe passes no P2PCommunicator", groups_of_stages, _passes_groups),
    Rule("groups.trainer", "harness: the adapters of upstream's trainers", groups_of_the_trainer, _passes_groups),
)
