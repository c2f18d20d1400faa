"""Megatron-LM, 0.17 to main of 2026-08: without Transformer Engine and Apex, a distributed optimizer cannot be loaded.

    PYTHONPATH=Megatron-LM python distributed_optimizer_without_te.py

To load a checkpoint of format torch_dist, `DistributedOptimizer.sharded_state_dict` calls `state_dict` of an optimizer
that has not made an update yet. With torch's Adam, which Megatron-LM uses when it has neither Transformer Engine nor
Apex, `state_dict` asserts that the parameters' states, of which there are none, have one number of updates. Exit code 1
if it raises.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from megatron.core.optimizer import distrib_optimizer


def main() -> int:
    if distrib_optimizer.HAVE_APEX_OR_TE:
        sys.exit("Transformer Engine or Apex is installed, so torch's Adam is not used")
    inner = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))])
    optimizer = SimpleNamespace(optimizer=inner, grad_scaler=None)
    try:
        distrib_optimizer.DistributedOptimizer.state_dict(optimizer)
    except AssertionError:
        print("state_dict of an optimizer without an update raises AssertionError: it cannot be loaded")
        return 1
    print("state_dict of an optimizer without an update can be made")
    return 0


if __name__ == "__main__":
    sys.exit(main())
