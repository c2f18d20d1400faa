"""The stubs of gloo on two ranks, whose tensors are on the CPU; gloo is only given host memory of the stubs."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.device.two_ranks import results

TWO_RANKS = """
import json, os, sys, torch, torch.distributed as dist
from harness.runtime.device import gloo_stubs
child = os.fork()
rank = 0 if child else 1
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 2), rank=rank, world_size=2)
names = gloo_stubs.install()
held, given = [], []


def keeps(call):
    def kept(group, tensors, *where):
        given.extend(tensor.data_ptr() for tensor in tensors)
        return call(group, tensors, *where)
    return kept


gloo_stubs._send, gloo_stubs._recv = keeps(gloo_stubs._send), keeps(gloo_stubs._recv)


def mine(*values):
    held.append(torch.tensor([float(value) for value in values], requires_grad=True))
    return held[-1]


largest, total = [torch.tensor([rank + 1.0, -rank]) for _ in range(2)], [torch.ones(2) * (rank + 1), torch.ones(3)]
with dist.distributed_c10d._coalescing_manager():
    for tensor in largest:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
    for tensor in total:
        dist.all_reduce(tensor)
manager.wait()
ring = mine(0, 0)
ops = [dist.P2POp(dist.isend, mine(rank, 7), 1 - rank), dist.P2POp(dist.irecv, ring, 1 - rank)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
    assert work.is_completed()
blocking = mine(5)
if rank:
    dist.recv(blocking, 0)
else:
    dist.send(blocking * 2, 1)
refused = []
for name in ("send", "recv"):
    try:
        getattr(dist.distributed_c10d._get_default_group(), name)([torch.zeros(3, 4)[:, :2]], 1 - rank, 0)
    except RuntimeError as error:
        refused.append(str(error))
uneven = [torch.zeros(size) for size in (1, 3)]
dist.all_gather(uneven, torch.full(((1, 3)[rank],), rank + 1.0))
seen = {
    "names": names, "refused": refused, "uneven": [part.tolist() for part in uneven],
    "largest": [part.tolist() for part in largest], "total": [part.tolist() for part in total],
    "ring": ring.tolist(), "blocking": blocking.tolist(),
    "calls": len(given), "by_host": not {one.data_ptr() for one in held} & {*given},
}
open(f"{sys.argv[1]}-{rank}", "w").write(json.dumps(seen))
if child:
    os.waitpid(child, 0)
os._exit(0)
"""


def test_what_gloo_lacks_for_cuda_tensors_goes_through_host_memory_with_the_same_values(tmp_path: Path) -> None:
    for rank, seen in enumerate(results(TWO_RANKS, tmp_path)):
        assert seen == {
            "names": [
                "torch.distributed.all_gather",
                "torch.distributed.reduce_scatter",
                "torch.distributed.ProcessGroup.allreduce_coalesced",
                "torch.distributed.ProcessGroup.send",
                "torch.distributed.ProcessGroup.recv",
            ],
            "refused": ["input tensor has to be contiguous"] * 2,
            "uneven": [[1.0], [2.0, 2.0, 2.0]],
            "largest": [[2.0, 0.0]] * 2,
            "total": [[3.0, 3.0], [2.0, 2.0, 2.0]],
            "ring": [1.0 - rank, 7.0],
            "blocking": [10.0 if rank else 5.0],
            "calls": 5,
            "by_host": True,
        }
