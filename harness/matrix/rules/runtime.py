"""Rules of how a cell runs and where: kernels, dtypes, recomputation, process groups, upstream's tests, stacks."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.core.cell.axis_values import EXPLICIT
from harness.core.cell.config import CellConfig
from harness.core.stack import DEFAULT, Stack
from harness.features.attention.limits import TE_PADDING, te_auto_padding
from harness.matrix.cluster import ClusterProfile, nodes_for
from harness.matrix.rules.rule import Rule

_PINNED_ENGINE = re.compile(r"transformer[-_]engine(?:[-_](?:torch|cu\d+))?(?:\[[^\]]*\])?==(\d+(?:\.\d+)*)")
_SETS_PAD_BETWEEN_SEQS = (0, 19)  # first megatron-core whose PackedSeqParams has pad_between_seqs
_PINNED_CORE = re.compile(r"megatron[-_]core==(\d+(?:\.\d+)*)")


def te_version_rule(stacks: Mapping[str, Stack]) -> Rule:
    """Return the rule for stacks that pin Transformer Engine; for others the node checks the installed release."""

    def predicate(config: CellConfig) -> str | None:
        if config.stack == DEFAULT or config.stack not in stacks:
            return None
        packages = (*stacks[config.stack].packages, *stacks[config.stack].no_deps)
        engine, core = _pinned(_PINNED_ENGINE, packages), _pinned(_PINNED_CORE, packages)
        if engine is None:
            return None
        padding_set = config.path.sets_pad_between_seqs and core is not None and core[:2] >= _SETS_PAD_BETWEEN_SEQS
        return te_auto_padding(engine, config, padding_set)

    return Rule(*TE_PADDING, predicate)


def _pinned(pattern: re.Pattern[str], packages: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the version in the first matching requirement."""
    pin = next((match for requirement in packages if (match := pattern.match(requirement.replace(" ", "")))), None)
    return tuple(int(part) for part in pin.group(1).split(".")) if pin else None


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
    if config.groups != EXPLICIT or config.trained_by_harness:
        return None
    return f"trainer {config.trainer} uses Megatron's global groups; groups: {EXPLICIT} needs trainer: harness"


RUNTIME_RULES: tuple[Rule, ...] = (
    Rule("groups.other-ranks", "harness: the probe's other order of ranks", groups_of_other_ranks),
    Rule("groups.stages", "harness: the probe passes no P2PCommunicator", groups_of_stages),
    Rule("groups.trainer", "harness: the adapters of upstream's trainers", groups_of_the_trainer),
)


def container_rule(stacks: Mapping[str, Stack]) -> Rule:
    """Return the rule for runs on this machine: the harness starts containers through Slurm only (pyxis)."""

    def predicate(config: CellConfig) -> str | None:
        stack = stacks.get(config.stack)
        if stack is None or not stack.container:
            return None
        return f"stack {stack.name} is container {stack.container}, and cells run on this machine; use --cluster"

    return Rule("stack.container", "harness: containers are started through Slurm (pyxis)", predicate)


def nodes_rule(cluster: ClusterProfile, nodes_per_cell: int = 1) -> Rule:
    """Return the rule that ranks must split evenly over nodes (torch elastic: one nproc_per_node), and over no more
    than a job may take.
    """

    def predicate(config: CellConfig) -> str | None:
        layout, world = config.layout, config.layout.world_size
        nodes = nodes_for(world, cluster, nodes_per_cell)
        if nodes <= cluster.nodes and world % nodes == 0:
            return None
        sizes = f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp} = {world} ranks"
        fewest = -(-world // cluster.ranks_per_node)
        why = f"ceil({world} / {cluster.ranks_per_node} ranks per node) = {fewest} nodes"
        if nodes > fewest:
            why = f"launch.nodes_per_cell = {nodes_per_cell}: {nodes} nodes"
        if nodes > cluster.nodes:
            return f"{sizes}, {why}, more than the {cluster.nodes} that a job of cluster {cluster.name} may take"
        rest = f"{world} = {world // nodes} * {nodes} + {world % nodes}"
        return f"{sizes}, {why}, over which the ranks do not split evenly: {rest}"

    return Rule("cluster.nodes", "harness: one number of ranks per node (torch elastic nproc_per_node)", predicate)
