"""Collectives of tensors with different sizes, on two ranks of gloo."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.device.two_ranks import results

TWO_RANKS = """
import json, os, sys, torch, torch.distributed as dist
from harness.runtime.device.uneven_collectives import all_gather, reduce_scatter
child = os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
seen = {}
for name, sizes in {"other": (1, 3), "equal": (2, 2), "empty": (0, 2)}.items():
    outputs = [torch.zeros(size, 2) for size in sizes]
    all_gather(tensor_list=outputs, tensor=torch.full((sizes[rank], 2), rank + 1.0))
    output = torch.zeros(sizes[rank], 2)
    inputs = [torch.full((size, 2), 10.0 * (rank + 1) + index) for index, size in enumerate(sizes)]
    reduce_scatter(output=output, input_list=inputs)
    seen[name] = [[part.tolist() for part in outputs], output.tolist(), [float(part.sum()) for part in inputs]]
open(f"{sys.argv[1]}-{rank}", "w").write(json.dumps(seen))
if child:
    os.waitpid(child, 0)
os._exit(0)
"""


def test_every_rank_gets_the_parts_of_all_and_the_sum_of_its_own(tmp_path: Path) -> None:
    for rank, seen in enumerate(results(TWO_RANKS, tmp_path)):
        for sizes, (gathered, summed, inputs) in zip([(1, 3), (2, 2), (0, 2)], seen.values()):
            assert gathered == [[[index + 1.0] * 2] * size for index, size in enumerate(sizes)]
            assert summed == [[30.0 + 2 * rank] * 2] * sizes[rank]
            assert inputs == [(10.0 * (rank + 1) + index) * 2 * size for index, size in enumerate(sizes)]
