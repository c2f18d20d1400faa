"""The rule that depends on the cluster: a cell's ranks are spread evenly over the nodes of one job."""

from __future__ import annotations

from harness.core.cell.config import CellConfig
from harness.plan.jobs.cluster import ClusterProfile, nodes_for
from harness.plan.rules.rule import Rule


def nodes_rule(cluster: ClusterProfile, nodes_per_cell: int = 1) -> Rule[CellConfig]:
    """Ranks must split evenly over nodes (torch elastic: one nproc_per_node), and over no more than a job may take."""

    def predicate(config: CellConfig) -> str | None:
        layout, world = config.layout, config.layout.world_size
        nodes = nodes_for(world, cluster, nodes_per_cell)
        if nodes <= cluster.nodes and world % nodes == 0:
            return None
        sizes = f"tp {layout.tp} x pp {layout.pp} x cp {layout.cp} x dp {layout.dp} = {world} ranks"
        needed = -(-world // cluster.ranks_per_node)
        why = f"ceil({world} / {cluster.ranks_per_node} ranks per node) = {needed} nodes"
        if nodes > needed:
            why = f"launch.nodes_per_cell = {nodes_per_cell}: {nodes} nodes"
        if nodes > cluster.nodes:
            return f"{sizes}, {why}, more than the {cluster.nodes} that a job of cluster {cluster.name} may take"
        rest = f"{world} = {world // nodes} * {nodes} + {world % nodes}"
        return f"{sizes}, {why}, over which the ranks do not split evenly: {rest}"

    return Rule("cluster.nodes", "harness: one number of ranks per node (torch elastic nproc_per_node)", predicate)
