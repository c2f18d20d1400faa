"""Cells over one, two and four nodes of a real cluster: a cell that hangs affects no other cell of its job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.infra.files import shipped
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]
MATRIX = """\
name: hang
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  layout: [{tp: 2, pp: 1}, {tp: 2, pp: 2}]
  packing: [sft, reference]
launch: {deadline_s: 600}
"""
WIDE = """\
name: wide
model: {layers: 4, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
matrix:
  layout: [{tp: 2, pp: 4, cp: 2}]
  packing: sft
launch: {nodes_per_cell: 4, deadline_s: 600}
"""
HANG = {"fault": "rank-enters-a-collective-alone", "deadline_s": 45.0}
ONE_NODE, TWO_NODES = "tp2-pp1-cp1-sft", "tp2-pp2-cp1-sft"


@pytest.fixture
def two_ranks_a_node(lab: SlurmLab, tmp_path: Path) -> Iterator[Cluster]:
    profile = (shipped("matrices") / "clusters/slurm-lab.yaml").read_text()
    assert "ranks_per_node: 8" in profile
    (tmp_path / "narrow.yaml").write_text(profile.replace("ranks_per_node: 8", "ranks_per_node: 2"))
    yield Cluster(lab, tmp_path, MATRIX)


def test_a_rank_that_hangs_is_named_with_its_collective_and_costs_no_other_cell(two_ranks_a_node: Cluster) -> None:
    cluster = two_ranks_a_node
    cluster.prepare({ONE_NODE: HANG, TWO_NODES: HANG}, "--cluster", "./narrow.yaml")
    code, output = cluster.run("resume", "latest")
    assert code == 1, output
    cells = cluster.cells()
    for name, ranks in ((ONE_NODE, 2), (TWO_NODES, 4)):
        assert cells[name].outcome is Outcome.FAIL
        (finding,) = (finding for finding in cells[name].findings if finding.check == "ended")
        assert "hang in " in finding.message
        assert "barrier (rank" in finding.message
        assert "at step 1" in finding.message
        assert [ending.ended for ending in cluster.result(name).ranks] == ["deadline"] * ranks
        for rank in range(ranks):
            log = (cluster.attempt(name) / f"log/rank-{rank:05d}.log").read_text()
            assert "most recent call first" in log
    for name in set(cells) - {ONE_NODE, TWO_NODES}:
        assert cells[name].outcome is Outcome.PASS, name
    for name in (ONE_NODE, TWO_NODES):
        other = name.replace("sft", "reference")
        assert cluster.allocation(other) == cluster.allocation(name)
        assert cluster.result(other).started > cluster.result(name).finished
    assert len(set(cluster.hosts(TWO_NODES))) == 2


def test_sixteen_ranks_over_four_nodes_pass(lab: SlurmLab, tmp_path: Path) -> None:
    cluster = Cluster(lab, tmp_path, WIDE)
    code, output = cluster.run("run", str(cluster.matrix), "--cluster", "slurm-lab")
    assert code == 0, output
    assert cluster.cells()["tp2-pp4-cp2-sft"].outcome is Outcome.PASS
    assert cluster.hosts("tp2-pp4-cp2-sft") == [f"n{rank // 4 + 1}" for rank in range(16)]
