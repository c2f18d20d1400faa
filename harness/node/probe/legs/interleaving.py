"""Two cells of different stacks take turns, through files that each writes when a turn of its is over.

Turns are numbered from 0 over both: ABAB, so that each comes after a wait. (With ABBA one side in each round would have
just run, with warm caches.) Only rank 0 of a cell looks at files. A side that waits too long gives up, and says so, so
that the other does not wait either.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from harness.core.run.run_dir import RunDir, write_json
from harness.node.data_paths.base import RankContext

PATIENCE = 0.5  # share of the deadline; the other side may have to load its torch first
_POLL_S = 0.005


def turns_of(rounds: int, first: bool) -> Iterator[tuple[int, int]]:
    """(round, number of the turn) of one side, in order."""
    for turn in range(rounds):
        yield turn, 2 * turn + (0 if first else 1)


class Turns:
    """One side's view of the turns."""

    def __init__(self, context: RankContext) -> None:
        timing = context.config.timing
        run = RunDir(context.folder.parents[2])
        self.folder = run.turns(timing.turns) / context.folder.name
        self.rank_zero = context.is_rank_zero
        self.device = context.device.torch_device
        self.patience_s = PATIENCE * context.config.deadline_s

    def wait(self, number: int) -> bool:
        """Until the turn before `number` is over; False when it does not come. Collective."""
        told = torch.tensor([int(self.rank_zero and self._comes(number))], device=self.device)
        dist.broadcast(told, 0)
        return bool(told)

    def over(self, number: int) -> None:
        if self.rank_zero:
            write_json(self.folder / str(number), {"time": time.time()})

    def give_up(self, number: int) -> None:
        if self.rank_zero:
            write_json(self.folder / "given-up", {"turn": number, "time": time.time()})

    def _comes(self, number: int) -> bool:
        limit = time.monotonic() + self.patience_s
        before, given_up = self.folder / str(number - 1), self.folder / "given-up"
        while number and not before.exists():
            if given_up.exists() or time.monotonic() > limit:
                self.give_up(number)
                return False
            time.sleep(_POLL_S)
        return True
