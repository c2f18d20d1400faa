"""Interleaved timing of two cells in different stacks, which take turns by writing a file at the end of each turn.

Turns are numbered from 0 over both cells, in the order ABAB, so that every turn follows a wait. (With ABBA, one cell of
each round would have warm caches.) Only rank 0 of a cell reads the files. A cell that waits too long gives up and
writes a file, so that the other one stops waiting too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from harness.core.run.run_dir import AttemptDir, write_json
from harness.node.data_paths.base import RankContext

MAX_WAIT = 0.5  # fraction of the deadline; the other cell may still have to import torch
_POLL_S = 0.005


def turn_numbers(rounds: int, first: bool) -> Iterator[tuple[int, int]]:
    """(round, turn) of one cell, in order; `first`: whether the cell begins."""
    for turn in range(rounds):
        yield turn, 2 * turn + (0 if first else 1)


class Interleaver:
    """One cell's side of the interleaving."""

    def __init__(self, context: RankContext) -> None:
        timing = context.config.timing
        run = AttemptDir(context.folder).run
        self.folder = run.interleaving(timing.turns) / context.folder.name
        self.rank_zero = context.is_rank_zero
        self.device = context.device.torch_device
        self.timeout_s = MAX_WAIT * context.config.deadline_s

    def wait(self, number: int) -> bool:
        """Wait until the turn before `number` is over; False if the other cell gave up or is too late. Collective."""
        ready = torch.tensor([int(self.rank_zero and self._previous_is_over(number))], device=self.device)
        dist.broadcast(ready, 0)
        return bool(ready)

    def over(self, number: int) -> None:
        if self.rank_zero:
            write_json(self.folder / str(number), {"time": time.time()})

    def give_up(self, number: int) -> None:
        if self.rank_zero:
            write_json(self.folder / "given-up", {"turn": number, "time": time.time()})

    def _previous_is_over(self, number: int) -> bool:
        limit = time.monotonic() + self.timeout_s
        before, given_up = self.folder / str(number - 1), self.folder / "given-up"
        while number and not before.exists():
            if given_up.exists() or time.monotonic() > limit:
                self.give_up(number)
                return False
            time.sleep(_POLL_S)
        return True
