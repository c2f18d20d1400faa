"""Groups of one rank on a shared device, beside groups of two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.device.two_ranks import results

TWO_RANKS = """
import json, os, sys, torch, torch.distributed as dist
from pathlib import Path
from harness.runtime.device import cpu_stubs, lone_groups
if sys.argv[2] == "shared":
    cpu_stubs.replace(lone_groups.rows())
child = os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
groups = [dist.new_group(ranks) for ranks in ([[0], [1], [0, 1]] * 5 + [[0], [1]])]
seen = []
for group in groups:
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        total = torch.tensor([rank + 1.0])
        dist.all_reduce(total, group=group)
        dist.barrier(group)
        seen.append(total.item())
threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
dist.barrier()
open(f"{sys.argv[1]}-{rank}", "w").write(json.dumps([seen, threads.count("gloo_tcp_loop")]))
if child:
    os.waitpid(child, 0)
os._exit(0)
"""


@pytest.mark.parametrize(("how", "devices"), [("shared", 1), ("torch's", 6)])
def test_lone_groups_share_a_thread_and_all_groups_compute(tmp_path: Path, how: str, devices: int) -> None:
    for rank, (seen, threads) in enumerate(results(TWO_RANKS, tmp_path, how)):
        assert seen == [*[rank + 1.0, 3.0] * 5, rank + 1.0]
        assert threads == 1 + 5 + devices  # of the world, of the pairs, of the lone groups
