"""From a matrix to the cells on a cluster: all that `harness plan` needs, without launching and judging."""

from __future__ import annotations

from harness.core.errors import InputError, Problem
from harness.core.run.run_plan import Expansion
from harness.core.stack import Stack
from harness.matrix.cluster import ClusterProfile
from harness.matrix.expansion.expand import expand
from harness.matrix.load import Matrix
from harness.matrix.rules.runtime import container_rule, nodes_rule, te_version_rule

_NO_TURNS = Problem(
    key="checks.throughput.slower_than",
    message="stacks cannot be interleaved on a cluster, where each stack runs in its own jobs",
    hint="run it with `cluster: local` inside an allocation of one node, or remove slower_than",
)


def expand_for(matrix: Matrix, cluster: ClusterProfile) -> Expansion:
    """Return the cells of a matrix on a cluster; those that cannot run there are rejected."""
    slurm = cluster.kind == "slurm"
    if slurm and matrix.base:
        raise InputError(_NO_TURNS)
    rule = nodes_rule(cluster, matrix.launch.nodes_per_cell) if slurm else container_rule(matrix.stacks)
    return expand(matrix, (rule, te_version_rule(matrix.stacks)))


def requested_stacks(expansion: Expansion, matrix: Matrix) -> list[Stack]:
    """Return the stacks that some cell uses, without the default one."""
    used = dict.fromkeys(cell.config.stack for cell in expansion.cells)
    return [matrix.stacks[name] for name in used if name in matrix.stacks]
