"""Collectives of tensors with different sizes, on two ranks of gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TWO_RANKS = """
import json, os, sys, torch, torch.distributed as dist
from harness.node.device.uneven_collectives import all_gather, reduce_scatter
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
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TWO_RANKS, str(store)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    files = [Path(f"{store}-{rank}") for rank in range(2)]
    assert all(file.exists() for file in files), done.stderr
    for rank, file in enumerate(files):
        for sizes, (gathered, summed, inputs) in zip([(1, 3), (2, 2), (0, 2)], json.loads(file.read_text()).values()):
            assert gathered == [[[index + 1.0] * 2] * size for index, size in enumerate(sizes)]
            assert summed == [[30.0 + 2 * rank] * 2] * sizes[rank]
            assert inputs == [(10.0 * (rank + 1) + index) * 2 * size for index, size in enumerate(sizes)]
