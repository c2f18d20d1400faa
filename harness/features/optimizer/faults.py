"""Faults in the schedules of learning rate and weight decay."""

from __future__ import annotations

from functools import partial

from harness.core.outcomes import Lane
from harness.faults.spec import ONE, PP, FaultSpec

_schedule_spec = partial(FaultSpec, fault_class="normalisation", lane=Lane.NUMERICS, checks=("optimizer_state",))

SCHEDULE: tuple[FaultSpec, ...] = (
    _schedule_spec(
        name="schedule-one-step-ahead",
        summary="the schedule of the learning rate begins at the second step",
        modelled_on="no known bug; a schedule that is stepped before the first update",
        layout=PP,
        why="one rank would do; two stages have groups of their own",
        axes={"train.lr_decay_style": "linear"},
        where={"step": 0, "rank": 0},
    ),
    _schedule_spec(
        name="weight-decay-over-the-steps-of-the-learning-rate",
        summary="the weight decay grows until the learning rate is lowest, not until the last step",
        modelled_on="no known bug; two lengths of a schedule taken for one",
        layout=ONE,
        why="one rank",
        axes={
            "train.lr_decay_style": "cosine",
            "train.lr_decay_iters": 4,
            "train.weight_decay_incr_style": "linear",
            "train.start_weight_decay": 0.1,
            "train.end_weight_decay": 0.3,
        },
        where={"step": 1, "rank": 0},
    ),
)
