"""The work of a step as data paths count it for FLOPs: micro-batches, sum of lengths, sum of squared lengths."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from harness.core.packing.arithmetic import MicroBatch

# Relative: Megatron-LM's schedulers pass sums on in float32, which holds every integer up to 2**24.
ROUNDING = 2.0**-24


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The counts of one step. Lengths follow cu_seqlens_q, in tokens: real ones where padded ones are passed too."""

    micro_batches: int  # of one replica, whatever the number of model chunks
    tokens: float  # sum of lengths over all replicas
    squares: float  # sum of squared lengths over all replicas


def workload(step: Sequence[Sequence[MicroBatch]], dp: int) -> Workload:
    """The workload of replica `dp`; `step` is indexed [dp][micro-batch]."""
    return workloads(step)[dp]


def workloads(step: Sequence[Sequence[MicroBatch]]) -> list[Workload]:
    """The workload of every replica."""
    tokens, squares = map(sum, zip(*(sums(replica) for replica in step)))
    return [Workload(micro_batches=len(replica), tokens=tokens, squares=squares) for replica in step]


def sums(replica: Sequence[MicroBatch]) -> tuple[int, int]:
    """Sum of lengths and of squared lengths of one replica's micro-batches."""
    lengths = [length for batch in replica for length in _lengths(batch)]
    return sum(lengths), sum(length**2 for length in lengths)


def _lengths(batch: MicroBatch) -> list[int]:
    """Lengths of the sequences that attention sees: segments of packed rows, otherwise whole rows."""
    params = batch.params()
    if params is None:
        return [row.length for row in batch.rows]
    return [end - start for start, end in itertools.pairwise(params.cu_seqlens_q)]
